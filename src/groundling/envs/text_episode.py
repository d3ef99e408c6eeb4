"""Episodes and steps of text envs."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge, Le
from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from groundling.envs.text_env import TextObservation, TextStep
from groundling.errors import ConfigError

Target = Literal["named", "other", "none"]


@dataclass(frozen=True, slots=True)
class FirstInteraction:
    """The keys of ``info["first_interaction"]`` at an episode's last step.

    An agent that tries one thing after another may succeed without reading, so only the first interaction counts. An
    env may report the mapping at every step (the last one is used), or omit it if the first interaction is unknown.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    target: Target  # The ``named`` thing, an ``other`` one, or ``none`` if the agent interacted with nothing
    chance: Annotated[float, Ge(0), Le(1)] | None = None
    """Probability of picking the named thing when choosing uniformly among the things within reach."""
    thing: str | None = None  # Description of the thing
    step: int | None = None  # Number of the action, starting at 1
    named: tuple[str, ...] = ()  # The mission's phrases for the thing, such as ``the red key``, marked in reports

    @property
    def figures(self) -> dict[str, float]:
        """Values that average to rates over episodes; ``first_precision`` is absent if there was no interaction."""
        figures = {f"first_{target}": float(self.target == target) for target in get_args(Target)}
        if self.target != "none":
            figures["first_precision"] = figures["first_named"]
        if self.chance is not None:
            figures["first_chance"] = self.chance
        return figures


_FIRST = TypeAdapter(FirstInteraction)


def read_first_interaction(info: Mapping[str, Any]) -> FirstInteraction | None:
    """Read the first interaction, if any, from an episode's last info; raise `ConfigError` for an invalid one."""
    given = info.get("first_interaction")
    try:
        return None if given is None else _FIRST.validate_python(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = "".join(f"[{name!r}]" for name in wrong["loc"][:1])
        raise ConfigError(
            f"info['first_interaction']{key} is {wrong['input']!r:.80}: {wrong['msg']} (see FirstInteraction)"
        ) from None


_METRICS = TypeAdapter(dict[str, FiniteFloat])
_OWN_METRICS = frozenset(
    {"success", "return", "length", "update", "step", "seconds", "steps_per_second", "episodes"}
)  # used by every episode or update


def read_metrics(info: Mapping[str, Any]) -> dict[str, float]:
    """Read ``info["metrics"]`` of an episode's last step: numbers to average over episodes, by name."""
    given = info.get("metrics", {})
    try:
        metrics = _METRICS.validate_python(given)
    except ValidationError:
        raise ConfigError(f"info['metrics'] must map names to finite numbers, got {given!r:.80}") from None
    if taken := sorted(_OWN_METRICS & metrics.keys()):
        raise ConfigError(f"info['metrics'] has {taken[0]!r}, a name that every run already has: rename it")
    return metrics


@dataclass(frozen=True, slots=True)
class TextEpisode:
    """An episode that ended or was cut off, with the data needed to replay it."""

    env_index: int
    number: int  # number of episodes that this env had already finished
    seed: int
    mission: str
    task: str  # the task family in an env with several, such as `LocalLevel`; otherwise the env's id
    actions: tuple[int | str, ...]  # indices, or texts if actions are free text
    episode_return: float  # sum of the env's rewards, without scaling or shaping
    success: bool
    """Read from the last step's info (`groundling.envs.text_env.read_success`). If the info has no success key, True if
    the env ended the episode with a positive reward, as in GLAM. False if the episode was cut off."""
    first: FirstInteraction | None = None  # the first interaction, if the env reports it
    success_key: str | None = None  # info key that determined success; None if the last reward did, or after a cut
    invalid_actions: float | None = None  # share of turns with an invalid written action, if actions are written
    metrics: Mapping[str, float] = field(default_factory=dict)  # the env's own (`read_metrics`)

    @property
    def figures(self) -> Mapping[str, float]:
        figures = {**self.metrics} if self.first is None else {**self.first.figures, **self.metrics}
        return figures if self.invalid_actions is None else {**figures, "invalid_actions": self.invalid_actions}

    @property
    def length(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class Step:
    """A synchronised step of all envs; arrays have shape ``(num_envs,)``."""

    observations: list[TextObservation]  # where an episode ended, the first observation of the next one
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observations: dict[int, TextObservation]  # last observations of episodes that ended, by env index
    episodes: list[TextEpisode]

    @property
    def dones(self) -> np.ndarray:
        """Booleans that are True where an episode ended with this step, whether terminated or truncated."""
        return np.asarray(self.terminated | self.truncated)


def random_action(observation: TextObservation, below: Callable[[int], int]) -> int | str:
    """Sample an action with ``below(n)``, which returns a random integer in [0, n). If actions are free text, sample a
    word from the observation, since an env is more likely to accept it than random characters.
    """
    if observation.actions:
        return int(below(len(observation.actions)))
    words = " ".join([observation.goal, *observation.descriptions[-1]]).split() or ["nothing"]
    return words[int(below(len(words)))].strip("\"'`.,:;!?()")


class EpisodeState:
    """The current episode of an env, with at most ``history`` observations (all if None) for a policy."""

    def __init__(self, history: int | None) -> None:
        self._history = history
        self.begin(-1, 0)

    def begin(self, episode: int, seed: int) -> None:
        steps = self._history and self._history - 1
        self.episode, self.seed = episode, seed
        self.episode_return = 0.0
        self.actions: list[int | str] = []
        self.chosen: list[int | str] = []  # as passed to the env; the last one may still be in flight
        self.goal = ""
        self.raw: Mapping[str, Any] = {}  # the env's own observation, if it is a mapping
        self.info: Mapping[str, Any] = {}  # of the last step
        self.admissible: tuple[str, ...] = ()
        self.tools: tuple[str, ...] = ()
        self.descriptions: deque[tuple[str, ...]] = deque(maxlen=self._history)
        self._past_actions: deque[str] = deque(maxlen=steps)
        self._past_choices: deque[tuple[str, ...]] = deque(maxlen=steps)

    def show(self, raw: Any, shown: TextStep, admissible: tuple[str, ...]) -> None:
        items = raw.items() if isinstance(raw, Mapping) else ()  # arrays are copied, because an env may reuse them
        self.raw = {name: one.copy() if isinstance(one, np.ndarray) else one for name, one in items}
        self.goal, self.admissible, self.tools = shown.goal, admissible, shown.tools
        self.descriptions.append(shown.descriptions)

    def take(self, action: int | str, keep_choices: bool) -> None:
        self.actions.append(action)
        self._past_actions.append(self.text_of(action))
        if keep_choices:
            self._past_choices.append(self.admissible)

    def text_of(self, action: int | str) -> str:
        return action if isinstance(action, str) else self.admissible[action]

    def observation(self) -> TextObservation:
        return TextObservation(
            self.goal,
            tuple(self.descriptions),
            tuple(self._past_actions),
            self.admissible,
            self.raw,
            tuple(self._past_choices),
            self.seed,
            self.tools,
        )

    def fingerprint(self, with_choices: bool) -> str:
        """Hash the goal, the visible descriptions and, ``with_choices``, the admissible actions."""
        texts = [self.goal, *self.descriptions, *([self.admissible] if with_choices else [])]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
