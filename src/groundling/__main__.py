"""Entry point of ``python -m groundling``."""

from groundling.cli.main import entry_point

if __name__ == "__main__":  # worker processes import this module too
    entry_point()
