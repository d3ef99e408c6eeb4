"""The present episode of a text env."""

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from groundling.envs.observation import TextObservation
from groundling.envs.text_env import TextStep


class EpisodeState:
    """What a policy sees of the present episode, and what plays it again.

    Args:
        history: Number of observations that a `TextObservation` holds at most; None: all of the episode.
    """

    def __init__(self, history: int | None) -> None:
        self._history = history
        self.begin(-1, 0)

    def begin(self, episode: int, seed: int) -> None:
        """Begin an episode; ``episode`` is the number of those before it."""
        steps = None if self._history is None else self._history - 1
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
        """Take the next observation, with the admissible actions."""
        self.raw = raw if type(raw) is dict or isinstance(raw, Mapping) else {}
        self.goal, self.admissible = shown.goal, admissible
        self.descriptions.append(shown.descriptions)

    def take(self, action: int, keep_choices: bool) -> None:
        """Note an action; ``keep_choices``: the admissible actions change."""
        self.actions.append(action)
        self._past_actions.append(self.admissible[action])
        if keep_choices:
            self._past_choices.append(self.admissible)

    def observation(self) -> TextObservation:
        """Return what a policy sees."""
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
