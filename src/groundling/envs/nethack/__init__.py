"""NetHack: the nine tasks of Motif (arXiv 2310.00166) on nle, and an env side that keeps a learner busy.

nle is an extra. It is imported when a task is made, never by ``import groundling``.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.envs.bundled import TASKS
from groundling.errors import ConfigError
from groundling.registry import unknown

if TYPE_CHECKING:
    from groundling.envs.nethack.tasks import NetHackTask

_WINDS = ("north", "east", "south", "west", "northeast", "southeast", "southwest", "northwest")
ACTIONS = (
    "more",
    *_WINDS,
    *(f"far {wind}" for wind in _WINDS),
    "up",
    "down",
    "wait",
    "kick",
    "eat",
    "search",
)
"""What each action does. Where a question is asked, "northwest" is the key y and says yes."""
RECORDING = ("savedir", "save_ttyrec_every")
"""Arguments with which nle writes recordings of the games: into which folder, and of how many games one."""


def make_goal(goal: str, **args: Any) -> "NetHackTask":
    """Make the task with this goal: ``score``, ``staircase`` or ``oracle``; ``args`` are its class's.

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
    """Make one of `TASKS` by its id, without Gymnasium's wrappers.

    Raises:
        ConfigError: nle is not installed, or there is no such task or argument.
    """
    if task not in TASKS:
        raise ConfigError(unknown("NetHack task", task, TASKS))
    return make_goal(**TASKS[task] | args)


def recording_in(args: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """A task's arguments with its recordings, if it makes any, in ``folder`` within ``savedir``.

    nle counts a process's recordings by env: those of two envs in one folder have the same names.
    """
    if not args.get("savedir"):
        return dict(args)
    return {**args, "savedir": str(Path(args["savedir"]) / folder)}


def check_installed() -> None:
    """Raise `ConfigError` where nle is missing."""
    if importlib.util.find_spec("nle") is None:
        raise ConfigError(
            "NetHack needs the package nle, which is not installed: pip install 'groundling[nethack]'"
        )


__all__ = ["ACTIONS", "RECORDING", "TASKS", "check_installed", "make_goal", "make_task", "recording_in"]
