"""Worlds: where experience comes from. A config's ``world.id`` names one of the kinds."""

from collections.abc import Sequence
from typing import Any, cast

from groundling.envs.nethack import TASKS
from groundling.envs.spec import WorldSpec
from groundling.registry import Registry
from groundling.worlds.nethack import NetHackWorld
from groundling.worlds.text import TextWorld
from groundling.worlds.world import CannotPlay, World
from groundling.worlds.writing import WritingWorld

worlds: Registry[World[Any, Any]] = Registry("world")
"""The kinds of world. Each one's class tells the dataclasses of its sections of the config."""
worlds.register("text")(TextWorld)
worlds.register("nethack")(NetHackWorld)
worlds.register("writing")(WritingWorld)


def kind(id: str) -> type[World[Any, Any]]:
    """The class of a kind of world.

    Raises:
        ConfigError: there is no such kind.
    """
    return cast(type[World[Any, Any]], worlds.get(id))


AGENTS: dict[str, str] = {**NetHackWorld.baselines, **TextWorld.baselines}
"""Who plays without a run: the `baselines` of all kinds of world."""


def experiment_of(agent: str, overrides: Sequence[str]) -> str:
    """The experiment in whose world one of `AGENTS` plays, where the overrides do not change the env."""
    named = [text.partition("=")[2] for text in overrides if text.startswith("world.env=")]
    plays_nethack = bool(set(named) & set(TASKS)) if named else agent == "explorer"
    return "motif/score" if plays_nethack else "glam/mixed"


__all__ = ["AGENTS", "CannotPlay", "World", "WorldSpec", "experiment_of", "kind", "worlds"]
