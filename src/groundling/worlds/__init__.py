"""Worlds: where experience comes from. `world_of` gives the one that a config names."""

from collections.abc import Sequence
from pathlib import Path

from groundling.configs.kinds import kind_of
from groundling.configs.schema import Config
from groundling.envs.nethack import TASKS
from groundling.envs.spec import WorldSpec
from groundling.worlds.world import CannotPlay, World


def world_of(config: Config, checkpoint: Path | None = None) -> World:
    """The config's world; arguments as of `World`. What it needs is imported, and nothing made."""
    kind = kind_of(config)
    if kind == "writing":
        from groundling.worlds.writing import WritingWorld

        return WritingWorld(config, checkpoint)
    if kind == "nethack":
        from groundling.worlds.nethack import NetHackWorld

        return NetHackWorld(config, checkpoint)
    from groundling.worlds.text import TextWorld

    return TextWorld(config, checkpoint)


AGENTS = {
    "random": "uniform over the admissible actions",
    "expert": "BabyAI's bot, which sees the whole world",
    "explorer": "NetHack's, by rules: it looks for the stairs and goes down",
}
"""Who plays without a run, and where; each world's `baselines` are those of its own."""


def experiment_of(agent: str, overrides: Sequence[str]) -> str:
    """The experiment in whose world one of `AGENTS` plays, where the overrides do not change the env."""
    named = [text.partition("=")[2] for text in overrides if text.startswith("env.id=")]
    plays_nethack = bool(set(named) & set(TASKS)) if named else agent == "explorer"
    return "motif/score" if plays_nethack else "glam/mixed"


__all__ = ["AGENTS", "CannotPlay", "World", "WorldSpec", "experiment_of", "world_of"]
