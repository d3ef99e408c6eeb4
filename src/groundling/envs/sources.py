"""Find where the goal, the observations and the actions of a text env are read from."""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from groundling.envs.make import TextEnvMaker, inspect_env
from groundling.envs.text_env import ACTIONS, GOALS, Reader, read_reset, read_text_step

_LIKE_A_GOAL = re.compile("goal|task|instruction|question|quest|target|objective|mission|prompt", re.IGNORECASE)
_SHOWN = 6  # Maximum number of action names shown


@dataclass(frozen=True)
class PartSource:
    """The source of one part of a step, and the ``world`` setting that selects or could select it."""

    part: str
    text: str
    key: str | None = None
    value: Any = None


def find_sources(
    id: str, args: Mapping[str, Any], actions: Sequence[str] | None = None, goal: str | Reader | None = None
) -> list[PartSource]:
    """Reset an env, and return the sources of its goal, observations and actions; ``actions`` and ``goal`` are from
    the config. Raise `ConfigError` if the env returns no text; errors raised by the env propagate.
    """
    with closing(TextEnvMaker.of(id, **args)()) as env:
        observation, info = read_reset(env.reset(seed=0))
    shown: Mapping[str, Any] = observation if isinstance(observation, Mapping) else {}
    step = read_text_step(observation, info)
    set_goal = "world.goal" if isinstance(goal, str) else str(goal)
    return [
        _goal(shown, info) if goal is None else PartSource("goal", set_goal),
        PartSource("observations", _observations(shown, info, step.goal)),
        _actions(id, args, info) if actions is None else PartSource("actions", "world.actions"),
    ]


def _goal(shown: Mapping[str, Any], info: Mapping[str, Any]) -> PartSource:
    places = [("info", "goal", info), ("observation", "mission", shown)]
    places += [("info", name, info) for name in GOALS] + [("observation", name, shown) for name in GOALS]
    for where, name, values in places:
        if isinstance(values.get(name), str):
            return PartSource("goal", f"{where}[{name!r}]")
    texts = {name: text for values in (info, shown) for name, text in values.items() if isinstance(text, str)}
    likely = next((name for name in texts if _LIKE_A_GOAL.search(name)), None)
    if likely is None:
        return PartSource("goal", "none; world.goal='a sentence' sets one for all episodes")
    return PartSource("goal", f"none; proposed: {texts[likely]!r:.80}", "goal_key", likely)


def _observations(shown: Mapping[str, Any], info: Mapping[str, Any], goal: str) -> str:
    if "descriptions" in info:
        return "info['descriptions']"
    names = [name for name, text in shown.items() if isinstance(text, str) and name not in GOALS and text != goal]
    return "the strings " + ", ".join(f"observation[{name!r}]" for name in names) if names else "the observation"


def _actions(id: str, args: Mapping[str, Any], info: Mapping[str, Any]) -> PartSource:
    env = inspect_env(id, args)
    if env.is_grid:
        return PartSource("actions", "GLAM's names for grid actions")
    if env.takes_any_text:
        return PartSource("actions", "any text")
    if env.own_names is None:
        listed = [name for name in ACTIONS if isinstance(info.get(name), list | tuple)]
        return PartSource("actions", f"info[{listed[0]!r}] at each step" if listed else "missing from info")
    more = ", …" if len(env.own_names) > _SHOWN else ""
    origin = "numbers (no names found)" if env.names_from is None else f"the env's attribute {env.names_from}"
    text = f"{origin}: {', '.join(env.own_names[:_SHOWN])}{more}"
    return PartSource("actions", text, "actions", [*env.own_names])
