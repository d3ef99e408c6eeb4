"""`groundling convert`: convert a GLAM, Lamorel or RL4LMs config file to an equivalent experiment."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from groundling.config.compose import from_values
from groundling.config.overrides import set_value
from groundling.config.schema import Config
from groundling.convert import glam, rl4lms
from groundling.convert.entries import load
from groundling.errors import ConfigError


@dataclass(frozen=True)
class Converted:
    """An experiment converted from another system's file."""

    path: Path  # The converted file
    values: dict[str, Any]  # Nested config values; other keys keep their defaults
    config: Config  # The complete config
    notes: list[str]  # Notes on entries that have no effect or a different meaning in Groundling

    def to_yaml(self) -> str:
        """Return the experiment as YAML, with the notes as comments."""
        notes = (" ".join(note.split()) for note in self.notes)  # a name in a note could contain a line break
        comments = (textwrap.fill(note, 110, initial_indent="# - ", subsequent_indent="#   ") for note in notes)
        head = ["# @package _global_", "#", f"# Converted from {' '.join(self.path.name.split())}.", *comments]
        return "\n".join([*head, OmegaConf.to_yaml(OmegaConf.create(self.values))])


def convert(path: Path, words: Sequence[str] = ()) -> Converted:
    """Convert a GLAM, Lamorel or RL4LMs file after applying overrides such as ``alg.args.n_steps=128`` to it."""
    tree = load(path)
    if {"lamorel_args", "rl_script_args"} & tree.keys():
        values, notes = glam.read(path, tree, words)
    elif {"alg", "datapool"} <= tree.keys():
        values, notes = rl4lms.read(path, tree, words)
    else:
        raise ConfigError(
            f"{path} is neither a GLAM or Lamorel config (it lacks lamorel_args and rl_script_args) nor an RL4LMs "
            "config (it lacks alg or datapool)"
        )
    nested: dict[str, Any] = {}
    for key, value in values.items():
        set_value(nested, key, value)
    return Converted(path, nested, from_values(nested, (), str(path)), notes)
