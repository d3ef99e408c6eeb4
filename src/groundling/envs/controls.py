"""Controls: change the goal that an agent reads in any text env, to measure whether its actions depend on the goal."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import gymnasium
import numpy as np

from groundling.envs.seeds import held_out_seed, is_held_out, training_seed
from groundling.envs.text_env import read_reset, read_text_step
from groundling.errors import ConfigError, UnknownEnv, foreign, unknown

CONTROLS = {
    "swapped": "the prompt contains a goal other than the rewarded one; an agent that reads it fails",
    "dropped": "the prompt omits the specifics of the goal",
    "scrambled": "the letters of the goal's content words are shuffled",
    "corrupted": "the goal's content words are replaced with words from other episodes' goals",
}
NEUTRAL = "complete the task"  # The goal shown under ``dropped``
_NO_GOAL = (
    "it has no goal, so there is nothing to control: return the goal in info['goal'], name its key with "
    "world.goal_key, or, if observations contain it, replace it there with a function (--other-goal FILE.py:FUNCTION)"
)
_NUM_EPISODES = 64  # Number of other episodes whose goals may be used
_NUM_GOALS = 4  # Number of other goals from which ``corrupted`` draws words
_REPEATED = 3  # Minimum number of words of a goal that is also replaced in the observations
_FUNCTION_WORDS = re.compile(
    "(a|an|and|any|are|as|at|be|by|do|for|from|has|have|if|in|into|is|it|its|must|not|of|on|or|so|some|than|that|the|"
    "then|this|to|up|what|which|with|you|your)",
    re.IGNORECASE,
)

OtherGoal = Callable[[str, Any, Mapping[str, Any]], str]
"""Returns a different goal, given an episode's goal, its first observation and info. If the env provides no goal, the
goal is "", and the function returns the text of each observation with a different goal in it."""
_functions: dict[str | None, OtherGoal] = {}  # by name
_in_use: list[str] = []  # names of the functions passed to `using`; the last one applies


@contextmanager
def using(name: str, function: OtherGoal | None) -> Iterator[None]:
    """Use a function's goals for ``swapped`` and record them under ``name``; if the function is None, do nothing."""
    if function is not None and not callable(function):
        raise ConfigError(f"other_goal must be a function of goal, observation and info, got {function!r:.80}")
    used = [] if function is None else [(name, function)]
    _functions.update(used)
    _in_use.extend(name for name, _ in used)
    try:
        yield
    finally:
        del _in_use[len(_in_use) - len(used) :]


def function_in_use() -> str | None:
    return _in_use[-1] if _in_use else None


@runtime_checkable
class StatesOtherGoals(Protocol):
    """An env that proposes the goals for ``swapped``. For other envs, the goals of other episodes are used."""

    def other_goals(self) -> Sequence[str]:
        """Return goals that the current episode could have had instead; called after each reset."""


@runtime_checkable
class ChecksGoals(Protocol):
    """An env that checks whether the goal shown under ``swapped`` was reached (reported as ``shown_success``)."""

    def achieves(self, goal: str) -> bool:
        """Return True if the current state achieves a goal that is not the episode's own; called after each step."""


class ControlledGoal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows a goal other than the env's own throughout an episode, without changing rewards. A goal of at least three
    words is also replaced where observations repeat it. The episode's seed determines all random draws.

    Args:
        env: A text env.
        control: One of `CONTROLS`.
        function: Name of the function passed to `using`, which returns the goals that ``swapped`` shows.

    Raises:
        ConfigError: The control is unknown, the env provides no goal, or there is no different goal to show.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], control: str, function: str | None = None) -> None:
        super().__init__(env)
        if control not in CONTROLS:
            raise ConfigError(unknown("control", str(control), CONTROLS))
        if function is not None and function not in _functions:
            raise UnknownEnv(
                f"the function {function} is not loaded in this process: pass --other-goal (in Python, other_goal); "
                "worker processes cannot load it, so also set world.num_workers=0"
            )
        self.control, self._function = control, function
        self._goals: dict[int, str] = {}  # of other episodes, by seed
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seed = int(self._rng.integers(2**30)) if seed is None else seed
        self._rng, self._achieved = np.random.default_rng(seed), False
        observation, info = read_reset(self.env.reset(seed=seed, options=options))
        goal = read_text_step(observation, info, has_lists=False).goal
        if not goal and (self._function is None or self.control != "swapped"):
            raise ConfigError(_NO_GOAL)
        others = self._proposed(goal, observation, info) if self.control == "swapped" else []
        if goal and not others and self.control in ("swapped", "corrupted"):
            others = self._of_other_episodes(goal, is_held_out(seed))
            observation, info = read_reset(self.env.reset(seed=seed, options=options))
        self._goal, self._shown = goal, self._changed(goal, others) if goal else ""
        return self._controlled(observation, info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._controlled(observation, info)
        checker = self._layer(ChecksGoals)
        if checker is not None and self.control == "swapped":
            with foreign(f"achieves of {self.env}"):
                self._achieved |= bool(checker.achieves(self._shown))
            info["metrics"] = {**info.get("metrics", {}), "shown_success": float(self._achieved)}
        return observation, reward, terminated, truncated, info

    def _controlled(self, observation: Any, info: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        goal, shown = self._goal, self._shown
        if not goal:
            return observation, {**info, "goal": "", "descriptions": self._call("", observation, info).split("\n")}

        def replaced(text: Any) -> Any:
            is_goal = isinstance(text, str) and (text == goal or len(goal.split()) >= _REPEATED)
            return text.replace(goal, shown) if is_goal else text

        descriptions = [*map(replaced, read_text_step(observation, info, goal, has_lists=False).descriptions)]
        if isinstance(observation, Mapping):
            observation = {name: replaced(value) for name, value in observation.items()}
        return replaced(observation), {**info, "goal": shown, "descriptions": descriptions}

    def _changed(self, goal: str, others: Sequence[str]) -> str:
        """Return the goal to show; raise `ConfigError` if the control cannot change it."""
        if self.control in ("swapped", "dropped"):
            return NEUTRAL if self.control == "dropped" else others[int(self._rng.integers(len(others)))]
        own = {word.lower() for word in re.findall(r"\w+", goal)}
        words = dict.fromkeys(word for other in others for word in re.findall(r"\w+", other))
        pool = [word for word in words if word.lower() not in own and not _FUNCTION_WORDS.fullmatch(word)]

        def change(match: re.Match[str]) -> str:
            word = changed = match[0]
            if _FUNCTION_WORDS.fullmatch(word):
                return word
            if self.control == "corrupted":
                return pool[int(self._rng.integers(len(pool)))] if pool else word
            while changed == word and len(set(word)) > 1:
                changed = "".join(self._rng.permutation(list(word)).tolist())
            return changed

        if (changed := re.sub(r"\w+", change, goal)) == goal:
            raise ConfigError(f"control={self.control} cannot change the goal {goal!r:.80}: it has no suitable words")
        return changed

    def _proposed(self, goal: str, observation: Any, info: Mapping[str, Any]) -> list[str]:
        """Return the goals that the user's function or the env proposes; may be empty."""
        if self._function is not None:
            return [self._call(goal, observation, info, goal or observation)]
        goals: Any = ()
        if (layer := self._layer(StatesOtherGoals)) is not None:
            with foreign(f"other_goals of {self.env}"):
                goals = layer.other_goals()
        if not isinstance(goals, list | tuple) or not all(isinstance(one, str) and one.strip() for one in goals):
            raise ConfigError(f"other_goals of {self.env} must return a list of non-empty strings, got {goals!r:.80}")
        return [other for other in goals if other != goal]

    def _call(self, goal: str, observation: Any, info: Mapping[str, Any], before: Any = None) -> str:
        """Call the user's function; raise `ConfigError` unless it returns text that differs from ``before``."""
        with foreign(f"the function {self._function}"):
            changed = _functions[self._function](goal, observation, info)
        if not isinstance(changed, str) or not changed.strip() or changed == before:
            what = f"a goal other than {goal!r:.80}" if goal else "each observation's text with a different goal in it"
            raise ConfigError(f"the function {self._function} must return {what}, got {changed!r:.80}")
        return changed

    def _of_other_episodes(self, goal: str, held_out: bool) -> list[str]:
        """Reset the env to find other goals, and return them; raise `ConfigError` if no goal is found."""
        found: list[str] = []
        for number in self._rng.permutation(_NUM_EPISODES).tolist():
            seed = held_out_seed(number) if held_out else training_seed(0, 0, number)
            if seed not in self._goals:
                self._goals[seed] = read_text_step(*read_reset(self.env.reset(seed=seed)), has_lists=False).goal
            if self._goals[seed] not in ("", goal, *found):
                found.append(self._goals[seed])
            if len(found) == (1 if self.control == "swapped" else _NUM_GOALS):
                break
        if not found:
            raise ConfigError(
                f"{_NUM_EPISODES} episodes all have the goal {goal!r:.80}, so there is no other goal to show: give the "
                "env a method other_goals, or pass --other-goal FILE.py:FUNCTION"
            )
        return found

    def _layer(self, protocol: Any) -> Any:
        """Return the outermost env that implements a protocol, or None."""
        layer: Any = self.env
        while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, protocol):
            layer = layer.env
        return layer if isinstance(layer, protocol) else None
