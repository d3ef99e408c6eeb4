"""Motif's nine NetHack tasks (arXiv 2310.00166), built on nle, which is optional and imported only when needed."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.envs.bundled import TASKS
from groundling.errors import ConfigError, unknown

if TYPE_CHECKING:
    from groundling.envs.nethack.tasks import NetHackTask

WINDS = ("north", "east", "south", "west", "northeast", "southeast", "southwest", "northwest")
ACTIONS = ("more", *WINDS, *(f"far {wind}" for wind in WINDS), "up", "down", "wait", "kick", "eat", "search")
"""Names of the actions. "northwest" is the key y, which also answers yes to questions."""
RECORDING = ("savedir", "save_ttyrec_every")  # nle's arguments: the folder for recordings, and the interval in games


def make_goal(goal: str, **args: Any) -> "NetHackTask":
    """Create the task with the goal ``score``, ``staircase`` or ``oracle``; ``args`` are passed to its class.

    Raises:
        ConfigError: nle is not installed, or the goal or an argument does not exist.
    """
    check_installed()
    from groundling.envs.nethack.tasks import GOALS

    if goal not in GOALS:
        raise ConfigError(unknown("NetHack goal", goal, GOALS))
    try:
        return GOALS[goal](**args)
    except TypeError as error:
        raise ConfigError(f"NetHack's {goal} task cannot be created with {args}: {error}") from error


def make_task(task: str, **args: Any) -> "NetHackTask":
    """Create one of `TASKS` by its id, without Gymnasium's wrappers; raise the same errors as `make_goal`."""
    if task not in TASKS:
        raise ConfigError(unknown("NetHack task", task, TASKS))
    return make_goal(**TASKS[task] | args)


def recording_in(args: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a task's arguments with ``savedir``, if set, changed to ``savedir/folder`` to avoid file collisions."""
    if not args.get("savedir"):
        return dict(args)
    return {**args, "savedir": str(Path(args["savedir"]) / folder)}


def check_installed() -> None:
    """Raise `ConfigError` if nle is missing."""
    if importlib.util.find_spec("nle") is None:
        raise ConfigError("NetHack needs the package nle, which is not installed: pip install 'groundling[nethack]'")


__all__ = ["ACTIONS", "RECORDING", "TASKS", "WINDS", "check_installed", "make_goal", "make_task", "recording_in"]
