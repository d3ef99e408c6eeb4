"""The interface of text envs: a goal, descriptions and admissible actions, under the names used by various engines."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, SupportsFloat, cast, get_args

import gymnasium
import numpy as np

from groundling.errors import ConfigError

Language = Literal["english", "french"]

FRENCH_NOUNS = {
    "floor": "sol",
    "door": "porte",
    "key": "clef",
    "ball": "balle",
    "box": "boîte",
    "goal": "but",
    "lava": "lave",
}
FRENCH_COLOURS = {
    "red": "rouge",
    "green": "verte",
    "blue": "bleue",
    "purple": "violette",
    "yellow": "jaune",
    "grey": "grise",
}
FRENCH_STATES = {"open": "ouverte", "closed": "fermée", "locked": "fermée à clef"}


class TranslationError(ConfigError):
    """The language is unknown, or there is no translation."""


def check_language(language: str) -> Language:
    """Return ``language``; raise `TranslationError` if it is unknown."""
    if language not in get_args(Language):
        raise TranslationError(f"unknown language {language!r}: expected one of {', '.join(get_args(Language))}")
    return cast(Language, language)


@dataclass(slots=True)  # not frozen, because construction would take four times as long
class TextObservation:
    """One step of a text env, with the recent history that a prompt may include."""

    goal: str  # the mission of the episode
    descriptions: tuple[tuple[str, ...], ...]
    """The recent observations as sentences, oldest first; the last one is the current observation."""
    past_actions: tuple[str, ...]  # the actions between them: one fewer than descriptions
    actions: tuple[str, ...]
    """The admissible actions; action ``i`` of the policy is ``actions[i]``. Empty if actions are free text."""
    raw: Mapping[str, Any]  # the env's own observation (image, …), for policies that do not read text
    past_choices: tuple[
        tuple[str, ...], ...
    ] = ()  # admissible actions at each past action; empty if they never change
    episode: int = field(default=0, compare=False)  # the episode's seed or number in a dataset; otherwise 0
    tools: tuple[str, ...] = ()  # JSON schemas of the functions that an action may call (see `ToolEnv`)

    def action_text(self, action: int | str) -> str:
        """Return an action, which may be an index, as text."""
        return action if isinstance(action, str) else self.actions[action]

    def changed(self, change: Callable[[str], str]) -> "TextObservation":
        """Return the observation with ``change`` applied to every string; ``raw`` is unchanged."""
        return replace(
            self,
            goal=change(self.goal),
            descriptions=tuple(tuple(map(change, texts)) for texts in self.descriptions),
            past_actions=tuple(map(change, self.past_actions)),
            actions=tuple(map(change, self.actions)),
            past_choices=tuple(tuple(map(change, texts)) for texts in self.past_choices),
        )

    def recent(self, history: int | None) -> "TextObservation":
        """Return the observation with its last ``history`` descriptions (all if None) and the actions between them."""
        if history is None:
            return self
        descriptions = self.descriptions[-history:]
        first = len(self.past_actions) - len(descriptions) + 1
        return replace(
            self,
            descriptions=descriptions,
            past_actions=self.past_actions[first:],
            past_choices=self.past_choices[first:],
        )


Offer = str  # ``words``, ``symbols``, ``glyphs``, ``prompt``, or one that a custom kind of world defines
Experience = Literal["acted", "demonstrated", "preferred"]
Evidence = Literal["env", "captions", "counts", "references"]


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world's kinds of observations and actions, available before a model or a game is loaded."""

    name: str  # id of the env or pool, for messages
    observation: frozenset[Offer]
    """``words``: a `TextObservation`; ``symbols``: also Minigrid's 7 x 7 x 3 codes; ``glyphs``: NetHack's crop,
    statistics and message; ``prompt``: the tokens of a prompt and its continuation."""
    action: Literal["choice", "free_text", "token"]  # one of the admissible actions, any text, or the next token
    num_actions: int | None = None  # maximum number of admissible actions; None if unlimited or if they are tokens
    language: str = "english"  # language of the observations
    experience: frozenset[Experience] = frozenset({"acted"})
    """Actions to learn from: the policy's, those in a dataset or a pool's references, or texts with preferences."""
    group_size: int | None = None
    """Number of episodes per update with the same start, such as completions of a prompt; None if not grouped."""
    evidence: frozenset[Evidence] = frozenset()
    """Inputs for rewards. ``env``: the world's own reward; ``captions``: descriptions of steps; ``counts``: how often
    a caption has occurred in the episode; ``references``: texts to compare with, and a pool's metadata."""
    subject: str | None = None
    """Subject of judges' questions (see `groundling.judges.asking.questions`); None if judges are not supported."""


GOALS = ("goal", "mission", "objective", "taskDesc", "taskDescription")
"""Info keys for the goal: Groundling's, BabyAI's, TextWorld's, ScienceWorld's, TextWorldExpress's."""
ACTIONS = ("actions", "admissible_commands", "valid_actions", "validActions", "valid", "possible_actions")
"""Info keys for admissible actions: ours, TextWorld's, Jericho's, TextWorldExpress's, ScienceWorld's, Lamorel's."""
SUCCESSES = (
    *("success", "is_success", "task_success", "tasksuccess"),
    *("won", "win", "victory", "solved", "goal_achieved"),
)
"""Info keys for success, in order of precedence: ``success`` and ``is_success`` are Gymnasium-Robotics' and SB3's,
``tasksuccess`` TextWorldExpress's, ``won`` TextWorld's and ALFWorld's, and ``goal_achieved`` Adroit's."""
_MOST_CHARACTERS = 1_000_000  # in an observation; longer ones take minutes to tokenize
FAILURES = ("lost", "taskfailure")  # info keys for failure: TextWorld's and TextWorldExpress's


class TextStep(NamedTuple):
    goal: str
    descriptions: tuple[str, ...]
    actions: tuple[str, ...] | None  # the admissible actions; None if the env does not list them
    tools: tuple[str, ...] = ()  # see `TextObservation.tools`


def read_text_step(
    observation: Any, info: Mapping[str, Any], goal: str | None = None, has_lists: bool = True
) -> TextStep:
    """Read the goal, descriptions and admissible actions from an observation and its info.

    Args:
        observation: A string, or a mapping that may contain a ``"mission"`` or other strings.
        info: May contain a goal (`GOALS`), ``"descriptions"`` and actions (`ACTIONS`). Descriptions default to
            the lines of the observation's strings. Indentation and blank lines are kept, since maps need them;
            whitespace at the end of a line or of the string is removed.
        goal: The episode's goal, used if the step has none; None at the start of an episode.
        has_lists: Read the admissible actions.

    Raises:
        ConfigError: There is no text, or a value is not a string that can be encoded as UTF-8.
    """
    is_first, goal = goal is None, _read_goal(observation, info, goal)
    descriptions: Any = info.get("descriptions")
    if descriptions is None:
        descriptions = _read_descriptions(observation, goal)
    elif not _are_texts(descriptions):
        raise ConfigError(f"info['descriptions'] must be a list of strings, got {_with_type(descriptions)}")
    if is_first and not (goal or descriptions or info.get("tools")):
        raise ConfigError(
            "its first observation is empty and it has no goal, so there is nothing to read: return text"
        )
    listed = info.get("actions") if has_lists else None
    if listed is None and has_lists:
        listed = next((info[name] for name in ACTIONS[1:] if _are_texts(info.get(name))), None)
    elif listed is not None and not _are_texts(listed):
        raise ConfigError(f"info['actions'] must be a list of strings, got {listed!r:.80}")
    for what, texts in (("the goal", (goal,)), ("a description", descriptions), ("an action", listed or ())):
        check_characters(what, texts)
    tools = tuple(json.dumps(schema, ensure_ascii=False) for schema in info.get("tools", ()))
    return TextStep(goal, tuple(descriptions), None if listed is None else tuple(listed), tools)


def _read_goal(observation: Any, info: Mapping[str, Any], goal: str | None) -> str:
    """Return the step's goal if it has one, otherwise the episode's ``goal`` or an empty string."""
    shown = observation if type(observation) is dict or isinstance(observation, Mapping) else {}
    if "mission" in shown and "goal" not in info:
        if not isinstance(mission := shown["mission"], str):
            raise ConfigError(f"observation['mission'] must be a string, got {_with_type(mission)}")
        return mission
    given = {f"info[{name!r}]": info[name] for name in GOALS if name in info}
    texts = [*given.values(), *(shown[name] for name in GOALS if name in shown)]
    goal = next((text for text in texts if isinstance(text, str)), goal)
    if goal is None and given:
        where, value = next(iter(given.items()))
        raise ConfigError(f"its goal, {where}, must be a string, got {_with_type(value)}")
    return goal or ""


def _read_descriptions(observation: Any, goal: str) -> list[str]:
    """Return the lines of a string or of the strings in a mapping, with their keys if there are several."""
    if isinstance(observation, str):
        return _lines(observation)
    shown = observation.items() if isinstance(observation, Mapping) else ()
    texts = {
        name: _lines(text) for name, text in shown if isinstance(text, str) and name not in GOALS and text != goal
    }
    if not texts:
        raise ConfigError(
            f"its observation is {_with_type(observation)}, not a string or a mapping with strings, and there is no "
            f"info['descriptions']: {_advice(observation)}"
        )
    if len(texts) == 1:
        return next(iter(texts.values()))
    return [
        line
        for name, lines in texts.items()
        for line in ([f"{name}: {lines[0]}"] if len(lines) == 1 else [f"{name}:", *lines])
    ]


def _lines(text: str) -> list[str]:
    # splitlines would also split at separators within a line, such as U+2028.
    text = text.rstrip()
    return [line.rstrip() for line in text.split("\n")] if text else []


def _advice(observation: Any) -> str:
    """Return advice on how to turn an observation into text."""
    if observation is None:
        return "return it from reset and step"
    if isinstance(observation, bytes):
        return "decode it, as in observation.decode()"
    if _are_texts(observation):
        return r"join it, as in '\n'.join(observation)"
    return "describe it, as in TextEnv(env, descriptions=lambda observation, info: [f'You are in {observation}.'])"


def _with_type(value: Any) -> str:
    return f"{value!r:.80} ({type(value).__name__})"


def check_characters(what: str, texts: Sequence[str]) -> None:
    """Raise a `ConfigError` about ``what`` if the strings are too long or contain a lone surrogate."""
    joined = "".join(texts)
    if len(joined) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{what} has {len(joined):,} characters, but at most {_MOST_CHARACTERS:,} are allowed: shorten it in the "
            "env, or select the relevant part with TextEnv(env, descriptions=…)"
        )
    if joined.isascii():
        return
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{what} has a character that UTF-8 cannot encode ({text[error.start]!a}, half of a surrogate "
                f"pair): {text!r:.80}: remove it; if the string comes from bytes, decode them with errors='replace'"
            ) from None


def _are_texts(value: Any) -> bool:
    try:
        return isinstance(value, list | tuple) and isinstance("".join(value), str)
    except TypeError:  # an entry is not a string
        return False


def read_reset(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the result of an env's reset; raise `ConfigError` unless it consists of an observation and an info."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise ConfigError(f"reset must return (observation, info) with a dict as info, got {returned!r:.80}")
    return returned


def read_step(returned: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Return the result of an env's step as Python floats and Booleans; raise `ConfigError` if a value is invalid."""
    if type(returned) is not tuple or len(returned) != 5:
        raise ConfigError(f"step must return (observation, reward, terminated, truncated, info), got {returned!r:.80}")
    observation, reward, terminated, truncated, info = returned
    # Arrays and tensors have a shape.
    if not hasattr(reward, "__float__") or getattr(reward, "shape", ()) != ():
        raise ConfigError(f"the reward must be a number, got {reward!r:.80}")
    if not math.isfinite(reward := float(reward)):
        raise ConfigError(f"the reward is {reward}: expected a finite number")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, np.bool_ | int | np.integer) or value not in (0, 1):
            raise ConfigError(f"{name} must be True or False, got {value!r:.80}")
    if not isinstance(info, Mapping):
        raise ConfigError(f"info must be a dict, got {info!r:.80}")
    return observation, reward, bool(terminated), bool(truncated), info


def success_key(info: Mapping[str, Any]) -> str | None:
    """Return the key that determines success: the first in `SUCCESSES`, otherwise the first in `FAILURES`, or None.

    Keys other than ``success`` and ``is_success`` are skipped if their value is not a Boolean, such as an amount of
    money that was won. Keys in `FAILURES` are also skipped if they are False.

    Raises:
        ConfigError: ``success`` or ``is_success`` is not a Boolean, or another key has a string such as "True".
    """
    for name in SUCCESSES:
        if name in info:
            if as_truth(info[name]) is not None:
                return name
            if name in SUCCESSES[:2] or str(info[name]).lower() in ("true", "false"):
                raise ConfigError(f"info['{name}'] must be True or False (or 1 or 0), got {_with_type(info[name])}")
    return next((name for name in FAILURES if as_truth(info.get(name))), None)


def read_success(info: Mapping[str, Any], otherwise: bool) -> bool:
    """Return whether an episode succeeded according to its last info, or ``otherwise`` if it has no `success_key`."""
    key = success_key(info)
    return otherwise if key is None else key not in FAILURES and bool(as_truth(info[key]))


def as_truth(value: Any) -> bool | None:
    """Convert a Boolean, number, or one-element array or tensor that is 0 or 1; return None for anything else."""
    if getattr(value, "size", None) == 1 or callable(getattr(value, "numel", None)):
        with suppress(ValueError, RuntimeError):  # a tensor with several elements
            value = value.item()
    if isinstance(value, bool | int | float | np.bool_ | np.number) and value in (0, 1):
        return bool(value)
    return None


Reader = Callable[[Any, Mapping[str, Any]], Any]  # called with an observation and its info


class TextEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turns any env into a text env with functions that describe its observations.

    Anything not passed here is read from the env itself (`read_text_step`). To train by id, register the wrapped env::

        gymnasium.register("Mine-v0", entry_point=lambda **args: TextEnv(Mine(**args), goal="win", actions=legal_moves))

    Args:
        env: An env with a `Discrete` action space (action i is the i-th in the list) or a `Text` one (for strings).
        goal: The goal, or a function that returns it; in `step`, it may return None to keep the episode's goal.
        descriptions: A function that returns an observation's sentences, each of which may have several lines.
        actions: Names of all actions, or a function that returns the admissible ones (at least one) in any order.
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
        space = env.action_space
        if isinstance(space, gymnasium.spaces.Discrete) and isinstance(actions, Sequence) and len(actions) != space.n:
            names = f"actions has {len(actions)} names, but {env} has {space.n} actions"
            raise ConfigError(f"{names}: name each, or pass a function that returns the admissible ones")
        given = {"goal": goal, "descriptions": descriptions, "actions": actions}
        self._given = {name: one for name, one in given.items() if one is not None}
        self._goal: Any = None  # the episode's

    def __str__(self) -> str:
        return str(self.env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = read_reset(self.env.reset(seed=seed, options=options))
        self._goal = None
        read = self._with_given(observation, info)
        if "goal" in self._given and self._goal is None:
            keys = ", ".join(map(str, [*info, *(observation if isinstance(observation, Mapping) else ())])) or "none"
            raise ConfigError(f"{self._given['goal']} returns no goal at reset; keys of info and observation: {keys}")
        return observation, read

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._with_given(observation, info)

    def _with_given(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: one(observation, info) if callable(one) else one for name, one in self._given.items()}
        if given.get("descriptions", ()) is None:  # the env's own would be read instead
            raise ConfigError(f"{self._given['descriptions']} must return a list of strings as descriptions, got None")
        given |= {"actions": []} if given.get("actions", ()) is None else {}
        if "goal" in given:
            given["goal"] = self._goal = self._goal if given["goal"] is None else given["goal"]
        return {**info, **given}


@dataclass(frozen=True)
class GoalKey:
    """Reads the goal from a key of the info or the observation; can be passed to `TextEnv` as ``goal``."""

    key: str

    def __str__(self) -> str:
        return f"world.goal_key={self.key}"

    def __call__(self, observation: Any, info: Mapping[str, Any]) -> Any:
        places = [place for place in (info, observation) if isinstance(place, Mapping)]
        return next((place[self.key] for place in places if self.key in place), None)
