"""NetHack: the nine tasks of Motif (arXiv 2310.00166) on nle. nle is an extra, imported when a task is made."""

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
"""The actions. At a question, "northwest" is the key y, which means yes."""
RECORDING = ("savedir", "save_ttyrec_every")  # nle's arguments: the folder, and the games of which one is recorded


def make_goal(goal: str, **args: Any) -> "NetHackTask":
    """Make the task with a goal, ``score``, ``staircase`` or ``oracle``, and arguments of its class.

    Raises:
        ConfigError: nle is not installed, or there is no such goal or argument.
    """
    check_installed()
    from groundling.envs.nethack.tasks import GOALS

    if goal not in GOALS:
        raise ConfigError(unknown("NetHack goal", goal, GOALS))
    try:
        return GOALS[goal](**args)
    except TypeError as error:
        raise ConfigError(f"NetHack's {goal} task cannot be made with {args}: {error}") from error


def make_task(task: str, **args: Any) -> "NetHackTask":
    """Make one of `TASKS` by its id, without Gymnasium's wrappers; errors as of `make_goal`."""
    if task not in TASKS:
        raise ConfigError(unknown("NetHack task", task, TASKS))
    return make_goal(**TASKS[task] | args)


def recording_in(args: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a task's arguments with its recordings, if any, in ``folder`` within ``savedir``: nle numbers a process's
    recordings by env, so two envs in one folder would use the same names.
    """
    if not args.get("savedir"):
        return dict(args)
    return {**args, "savedir": str(Path(args["savedir"]) / folder)}


def check_installed() -> None:
    """Raise `ConfigError` if nle is missing."""
    if importlib.util.find_spec("nle") is None:
        raise ConfigError("NetHack needs the package nle, which is not installed: pip install 'groundling[nethack]'")


__all__ = ["ACTIONS", "RECORDING", "TASKS", "WINDS", "check_installed", "make_goal", "make_task", "recording_in"]
