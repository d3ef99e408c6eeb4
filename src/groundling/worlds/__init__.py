"""Worlds: where experience comes from. A config's ``world.id`` names one of the kinds."""

from collections.abc import Sequence
from typing import Any, cast

from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
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


def agents() -> dict[str, str]:
    """Who plays without a run: the `baselines` of all kinds of world, and what they do."""
    abouts: dict[str, str] = {}
    for id in worlds.in_order():
        abouts = {**kind(id).baselines, **abouts}
    return abouts


def home_of(agent: str, overrides: Sequence[str]) -> type[World[Any, Any]]:
    """The kind of world in which one of the `agents` plays.

    It is the one that has the place that the overrides name. Of several the youngest has it: a text world can be any
    env that Gymnasium knows. Where none is named, or nobody has it, it is the first kind of which the agent is.

    Raises:
        ConfigError: no kind of which it is says in which experiment it plays.
    """
    kinds = [kind(id) for id in worlds.in_order() if kind(id).experiment is not None]
    for one in reversed(kinds):
        key = f"world.{one.config_class.PLACE}="
        if any(one.has(text.removeprefix(key)) for text in overrides if text.startswith(key)):
            return one
    homes = [one for one in kinds if agent in one.baselines]
    if not homes:
        raise ConfigError(
            f"{agent} is an agent of a world that names no experiment for it: evaluate a run of that world, which "
            f"evaluation.baselines=[{agent}] compares with it"
        )
    return homes[0]


__all__ = ["CannotPlay", "World", "WorldSpec", "agents", "home_of", "kind", "worlds"]
