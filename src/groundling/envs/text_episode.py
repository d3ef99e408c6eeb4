"""Episodes and steps of text envs."""

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from groundling.envs.text_env import TextObservation, TextStep
from groundling.errors import ConfigError, unknown

Target = Literal["named", "other", "none"]
_TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True, slots=True)
class FirstInteraction:
    """The keys of ``info["first_interaction"]`` at an episode's last step.

    An agent that tries one thing after the other succeeds without reading, so the first one counts. An env may give
    the mapping at every step (the last one counts), or leave it out if the first interaction is unknown.
    """

    target: Target  # The ``named`` thing, an ``other`` one, or ``none`` if the agent interacted with nothing
    chance: float | None = None  # Probability of the named thing in a uniform choice among the things within reach
    thing: str | None = None  # The thing in words
    step: int | None = None  # Number of the action, from 1
    named: tuple[str, ...] = ()  # Words of the mission that name the thing, such as ``the red key``; reports mark them

    @property
    def figures(self) -> dict[str, float]:
        """Figures whose means over episodes are shares; ``first_precision`` is absent without an interaction."""
        figures = {f"first_{target}": float(self.target == target) for target in _TARGETS}
        if self.target != "none":
            figures["first_precision"] = figures["first_named"]
        if self.chance is not None:
            figures["first_chance"] = self.chance
        return figures


def read_first_interaction(info: Mapping[str, Any]) -> FirstInteraction | None:
    """Read the first interaction of an episode's last info, if any; raise `ConfigError` for other keys or values."""
    given = info.get("first_interaction")
    if given is None:
        return None
    known = [field.name for field in fields(FirstInteraction)]
    if not isinstance(given, Mapping) or "target" not in given:
        raise ConfigError(
            f"info['first_interaction'] is {given!r}: expected a mapping with 'target' ({', '.join(_TARGETS)}) and, if "
            f"the env knows them, {', '.join(known[1:])}"
        )
    for key in given:
        if key not in known:
            raise ConfigError(unknown("key of info['first_interaction'],", str(key), known))
    if given["target"] not in _TARGETS:
        raise ConfigError(unknown("target in info['first_interaction'],", str(given["target"]), _TARGETS))
    chance = given.get("chance")
    if chance is not None and not (isinstance(chance, Real) and 0 <= float(chance) <= 1):
        raise ConfigError(f"info['first_interaction'] has the chance {chance!r}: expected 0 to 1")
    exact = {"chance": None if chance is None else float(chance), "named": tuple(given.get("named", ()))}
    return FirstInteraction(**{**given, **exact})


@dataclass(frozen=True, slots=True)
class TextEpisode:
    """An episode that ended or was cut, with what is needed to play it again."""

    env_index: int
    number: int  # number of episodes that this env had finished before
    seed: int
    mission: str
    task: str  # the mission's family, in an env with several (such as `LocalLevel`); else the env's id
    actions: tuple[int, ...]
    episode_return: float  # sum of the env's rewards, without scale or shaping
    success: bool
    """By the last step's info (`groundling.envs.text_env.read_success`); without such a key, True if the env ended the
    episode with a positive reward, as in GLAM. False if the episode was cut."""
    first: FirstInteraction | None = None  # the first interaction, if the env reports it
    success_key: str | None = None  # the info's key that decided; None: the last reward did, or it was cut
    invalid_actions: float | None = None  # share of the turns whose written action was invalid, if actions are written

    @property
    def figures(self) -> Mapping[str, float]:
        figures = {} if self.first is None else dict(self.first.figures)
        return figures if self.invalid_actions is None else {**figures, "invalid_actions": self.invalid_actions}

    @property
    def length(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Step:
    """A synchronised step of all envs; arrays have shape ``(num_envs,)``."""

    observations: list[TextObservation]  # after the end of an episode, the first one of the next episode
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observations: dict[int, TextObservation]  # last observations of episodes that ended, by env index
    episodes: list[TextEpisode]

    @property
    def dones(self) -> np.ndarray:
        """Bool: the episode ended with this step, by itself or by its time limit."""
        return np.asarray(self.terminated | self.truncated)


class EpisodeState:
    """The present episode of an env, with at most ``history`` observations (None: all) for a policy."""

    def __init__(self, history: int | None) -> None:
        self._history = history
        self.begin(-1, 0)

    def begin(self, episode: int, seed: int) -> None:
        steps = self._history and self._history - 1
        self.episode, self.seed = episode, seed
        self.episode_return = 0.0
        self.actions: list[int] = []
        self.chosen: list[int | str] = []  # as the env takes them; the last one may be on its way
        self.goal = ""
        self.raw: Mapping[str, Any] = {}  # the env's own observation, if it is a mapping
        self.info: Mapping[str, Any] = {}  # of the last step
        self.admissible: tuple[str, ...] = ()
        self.descriptions: deque[tuple[str, ...]] = deque(maxlen=self._history)
        self._past_actions: deque[str] = deque(maxlen=steps)
        self._past_choices: deque[tuple[str, ...]] = deque(maxlen=steps)

    def show(self, raw: Any, shown: TextStep, admissible: tuple[str, ...]) -> None:
        self.raw = raw if isinstance(raw, Mapping) else {}
        self.goal, self.admissible = shown.goal, admissible
        self.descriptions.append(shown.descriptions)

    def take(self, action: int, keep_choices: bool) -> None:
        self.actions.append(action)
        self._past_actions.append(self.admissible[action])
        if keep_choices:
            self._past_choices.append(self.admissible)

    def observation(self) -> TextObservation:
        return TextObservation(
            self.goal,
            tuple(self.descriptions),
            tuple(self._past_actions),
            self.admissible,
            self.raw,
            tuple(self._past_choices),
            self.seed,
        )

    def fingerprint(self, with_choices: bool) -> str:
        """Hash the goal, the visible descriptions and, if they change, the admissible actions."""
        texts = [self.goal, *self.descriptions, *([self.admissible] if with_choices else [])]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
