"""``python -m groundling``."""

from groundling.cli import entry_point

entry_point()
