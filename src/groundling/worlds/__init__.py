"""Worlds, the sources of experience. A config's ``world.id`` selects the kind of world."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.fields import annotation
from groundling.io.documents import read_bundled
from groundling.judges.asking.questions import Subject, subjects
from groundling.registry import Registry
from groundling.worlds.config import WorldConfig
from groundling.worlds.episode import Episode, Frame
from groundling.worlds.nethack.world import NetHackWorld
from groundling.worlds.text.world import TextWorld
from groundling.worlds.world import CannotPlay, Collector, Player, World
from groundling.worlds.writing.world import WritingWorld

worlds: Registry[World] = Registry("world")  # the kinds of world
worlds.register("text")(TextWorld)
worlds.register("nethack")(NetHackWorld)
worlds.register("writing")(WritingWorld)
kind = cast(Callable[[str], type[World]], worlds.get)
"""Return the class for a kind of world; raise `ConfigError` if the kind is unknown."""

for _world, _texts in read_bundled(Path(__file__).with_name("judging.yaml")).items():
    _tables = _texts.pop("tables", {})
    _rules = {
        goal: [(pattern, worth) for name in names for pattern, worth in _tables[name]]
        for goal, names in _texts.pop("rules", {}).items()
    }
    subjects[_world] = Subject(**_texts, rules=_rules)


def agents() -> dict[str, str]:
    """Return the names and descriptions of all worlds' baselines, which do not need a trained run."""
    return {name: about for id in reversed(worlds.in_order()) for name, about in kind(id).baselines.items()}


def home_of(agent: str, overrides: Sequence[str]) -> type[World]:
    """Return the kind of world in which a baseline plays: the last registered kind that has the env, task or pool named
    in the overrides, or else the kind that lists the baseline earliest. Both must have a default experiment.
    """
    homes = [one for one in map(kind, worlds.in_order()) if one.baselines and one.experiment is not None]
    keys = [f"world.{annotation(one, 'config').PLACE}=" for one in homes]
    words = [(one, key, text) for one, key in zip(homes, keys, strict=True) for text in overrides]
    placed = [one for one, key, text in words if text.startswith(key) and one.has(text.removeprefix(key))]
    named = [one for one in homes if agent in one.baselines]
    if not placed and not named:
        raise ConfigError(
            f"the world of baseline {agent} has no default experiment: evaluate a run of that world with "
            f"evaluation.baselines=[{agent}] instead"
        )
    return placed[-1] if placed else min(named, key=lambda one: [*one.baselines].index(agent))


__all__ = [
    "CannotPlay",
    "Collector",
    "Episode",
    "Frame",
    "Player",
    "Rollout",
    "World",
    "WorldConfig",
    "WorldSpec",
    "agents",
    "home_of",
    "kind",
    "worlds",
]
