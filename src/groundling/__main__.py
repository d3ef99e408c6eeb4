"""``python -m groundling``."""

from groundling.cli.main import entry_point

if __name__ == "__main__":  # a worker process imports this module, too
    entry_point()
