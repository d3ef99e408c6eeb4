"""The configuration of a run: its schema, the bundled YAML files, and how they are composed."""

from groundling.config.compose import compose, experiments, from_file
from groundling.config.schema import Config

__all__ = ["Config", "compose", "experiments", "from_file"]
