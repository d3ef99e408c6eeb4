"""What a text env tells at each step: a goal, descriptions, admissible actions; in the words of other engines, too."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, SupportsFloat

import gymnasium
import numpy as np

from groundling.errors import ConfigError

GOALS = ("goal", "mission", "objective", "taskDesc", "taskDescription")
"""Names under which an info may tell the goal: ours, TextWorld's, ScienceWorld's, TextWorldExpress's."""
ACTIONS = (
    "actions",
    "admissible_commands",
    "valid_actions",
    "validActions",
    "valid",
    "possible_actions",
)
"""Names under which an info may list the admissible actions: ours, TextWorld's, Jericho's, TextWorldExpress's,
ScienceWorld's, Lamorel's."""

SUCCESSES = (
    "success",
    "is_success",
    "task_success",
    "tasksuccess",
    "won",
    "win",
    "victory",
    "solved",
    "goal_achieved",
)
"""Keys of an info that say whether the episode succeeded, in order of precedence: ``success`` and ``is_success`` are
Gymnasium-Robotics' and SB3's, ``tasksuccess`` TextWorldExpress's, ``won`` TextWorld's and ALFWorld's, ``goal_achieved``
Adroit's; the others are frequent in games."""
FAILURES = ("lost", "taskfailure")
"""Keys that say that it failed, TextWorld's and TextWorldExpress's."""


class TextStep(NamedTuple):
    """One step of a text env in words."""

    goal: str
    descriptions: tuple[str, ...]
    actions: tuple[str, ...] | None
    """The admissible ones; None of an env that does not list them."""


def read_text_step(
    observation: Any, info: Mapping[str, Any], goal: str | None = None, has_lists: bool = True
) -> TextStep:
    """What an env tells with an observation and its info.

    Args:
        observation: A text, or a mapping that may have a ``"mission"``.
        info: May have a goal (`GOALS`), ``"descriptions"`` and admissible actions (`ACTIONS`). Without descriptions
            those are the lines of an observation that is a text: indentation and blank lines are kept, as maps need
            them; whitespace at the end of a line or of the text is removed.
        goal: The episode's, where this step does not tell it.
        has_lists: Whether admissible actions are looked for.

    Raises:
        ConfigError: goal or descriptions are missing, or something is no text that can be written.
    """
    if (type(observation) is dict or isinstance(observation, Mapping)) and "mission" in observation:
        goal = observation["mission"]
    else:
        goal = next((info[name] for name in GOALS if isinstance(info.get(name), str)), goal)
    if not isinstance(goal, str):
        raise ConfigError(
            "it gives no goal: expected a text as observation['mission'] or info['goal'], got "
            f"{_wrong_goal(observation, info)}"
        )
    check_characters("the goal", (goal,))
    descriptions: Any = info.get("descriptions")
    if descriptions is None and isinstance(observation, str):
        # splitlines would also split at separators within a line, such as U+2028.
        text = observation.rstrip()
        descriptions = [line.rstrip() for line in text.split("\n")] if text else []
    if not _are_texts(descriptions):
        wrong = (
            f"no info['descriptions'], and the observation {_shown(observation)}"
            if descriptions is None
            else f"info['descriptions'] = {_shown(descriptions)}"
        )
        raise ConfigError(
            "it gives no descriptions: expected a list of texts as info['descriptions'], or an observation that is "
            f"a text, got {wrong}"
        )
    check_characters("a description", descriptions)
    if not has_lists:
        return TextStep(goal, tuple(descriptions), None)
    listed = info.get("actions")
    if listed is None:
        listed = next((info[name] for name in ACTIONS[1:] if _are_texts(info.get(name))), None)
    elif not _are_texts(listed):
        raise ConfigError(f"info['actions'] must be a list of texts, got {listed!r:.80}")
    check_characters("an action", listed or ())
    return TextStep(goal, tuple(descriptions), None if listed is None else tuple(listed))


def _wrong_goal(observation: Any, info: Mapping[str, Any]) -> str:
    if isinstance(observation, Mapping) and "mission" in observation:
        return f"observation['mission'] = {_shown(observation['mission'])}"
    wrong = [f"info[{name!r}] = {_shown(info[name])}" for name in GOALS if name in info]
    return wrong[0] if wrong else "neither"


def _shown(value: Any) -> str:
    """A value that should have been a text, and its type."""
    return f"{value!r:.80} ({type(value).__name__})"


def check_characters(what: str, texts: Sequence[str]) -> None:
    """Check that texts can be written and tokenized.

    Args:
        what: Each of them is.
        texts: From an env or a setting.

    Raises:
        ConfigError: one has half a surrogate pair, which UTF-8 cannot encode.
    """
    if "".join(texts).isascii():  # known without a look at their characters
        return
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{what} has a character that UTF-8 cannot encode ({text[error.start]!a}, half of a surrogate "
                f"pair): {text!r:.80}: expected a text, decoded with errors='replace' if it comes from bytes"
            ) from None


def _are_texts(value: Any) -> bool:
    try:
        return isinstance(value, list | tuple) and isinstance("".join(value), str)
    except TypeError:  # one of them is none
        return False


def read_reset(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    """An observation and its info, as an env's reset returns them.

    Raises:
        ConfigError: it returned something else.
    """
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise ConfigError(f"reset must return (observation, info), info a dict, got {returned!r:.80}")
    return returned


def read_step(returned: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """What an env's step returns: observation, reward, terminated, truncated, info.

    Raises:
        ConfigError: it returned something else; the message says which value, and what is expected.
    """
    if type(returned) is not tuple or len(returned) != 5:
        raise ConfigError(
            f"step must return (observation, reward, terminated, truncated, info), got {returned!r:.80}"
        )
    observation, reward, terminated, truncated, info = returned
    if type(reward) is not float:
        reward = float(reward) if type(reward) is int else _number(reward)
    if not -_INFINITY < reward < _INFINITY:  # NaN is neither
        raise ConfigError(f"the reward is {reward}: expected a finite number")
    if type(terminated) is not bool:
        terminated = _truth("terminated", terminated)
    if type(truncated) is not bool:
        truncated = _truth("truncated", truncated)
    if type(info) is not dict and not isinstance(info, Mapping):
        raise ConfigError(f"info must be a dict, got {info!r:.80}")
    return observation, reward, terminated, truncated, info


_INFINITY = float("inf")


def _number(reward: Any) -> float:
    shape = getattr(reward, "shape", ())  # an array's or a tensor's
    if not hasattr(reward, "__float__") or shape != ():
        raise ConfigError(f"the reward must be a number, got {reward!r:.80}")
    return float(reward)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, np.bool_ | int | np.integer) or value not in (0, 1):
        raise ConfigError(f"{name} must be True or False, got {value!r:.80}")
    return bool(value)


def success_key(info: Mapping[str, Any]) -> str | None:
    """The key of an info that decides whether its episode succeeded: the first of `SUCCESSES`, else of `FAILURES`.

    Keys other than ``success`` and ``is_success`` are skipped where their value is no truth value, such as an amount
    that was won; those of `FAILURES` also where they are False.

    Args:
        info: The last step's.

    Returns:
        None where there is no such key.

    Raises:
        ConfigError: ``success`` or ``is_success`` is neither true nor false.
    """
    for name in SUCCESSES:
        if name in info:
            if _as_truth(info[name]) is not None:
                return name
            if name in SUCCESSES[:2]:
                raise ConfigError(
                    f"info['{name}'] must be True or False (or 1 or 0), got {_shown(info[name])}"
                )
    return next((name for name in FAILURES if _as_truth(info.get(name))), None)


def read_success(info: Mapping[str, Any], otherwise: bool) -> bool:
    """Whether an episode that has ended succeeded.

    Args:
        info: The last step's.
        otherwise: The answer where the info has no `success_key`.

    Raises:
        ConfigError: as `success_key`.
    """
    key = success_key(info)
    return otherwise if key is None else key not in FAILURES and bool(_as_truth(info[key]))


def _as_truth(value: Any) -> bool | None:
    """A Boolean, number, array or tensor of one element that is 0 or 1; None for anything else."""
    if getattr(value, "size", None) == 1 or callable(getattr(value, "numel", None)):
        with suppress(ValueError, RuntimeError):  # a tensor of several elements
            value = value.item()
    return (
        bool(value)
        if isinstance(value, bool | int | float | np.bool_ | np.number) and value in (0, 1)
        else None
    )


Reader = Callable[[Any, Mapping[str, Any]], Any]
"""From an observation and its info."""


class TextEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Any env as one that tells itself in words, by functions of its observations.

    What is not given is read off the env as it is (`read_text_step`). Register what wraps your env, and it is trained
    by its id::

        gymnasium.register("Mine-v0", entry_point=lambda **args: TextEnv(Mine(**args), goal="win", actions=legal_moves))

    Args:
        env: Its action space is `Discrete` (action i is the i-th of the list) or `Text` (the action is the text).
        goal: What is wanted, or a function that tells it.
        descriptions: Gives the sentences of an observation; several lines in one are welcome.
        actions: The names of all actions, or a function that gives the admissible ones, 1 or more, in any order.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        goal: str | Reader | None = None,
        descriptions: Reader | None = None,
        actions: Sequence[str] | Reader | None = None,
    ) -> None:
        super().__init__(env)
        given = {"goal": goal, "descriptions": descriptions, "actions": actions}
        self._given = {name: one for name, one in given.items() if one is not None}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._with_given(observation, info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._with_given(observation, info)

    def _with_given(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: one(observation, info) if callable(one) else one for name, one in self._given.items()}
        return {**info, **given}
