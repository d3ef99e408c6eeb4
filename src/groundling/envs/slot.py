"""One place of a vector env."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Slot:
    """What the vector env remembers of one env's present episode."""

    descriptions: deque[tuple[str, ...]]
    past_actions: deque[str]
    past_choices: deque[tuple[str, ...]]
    episode: int = -1
    seed: int = 0
    episode_return: float = 0.0

    @classmethod
    def remembering(cls, history: int | None) -> "Slot":
        """So many observations, and what was done between them; None: all."""
        steps = None if history is None else history - 1
        return cls(deque(maxlen=history), deque(maxlen=steps), deque(maxlen=steps))

    def __post_init__(self) -> None:
        self.actions: list[int] = []
        self.chosen: list[int | str] = []  # as the env takes them; the last one may be on its way
        self.raw: Any = None
        self.goal = ""
        self.admissible: tuple[str, ...] = ()
        self.info: Mapping[str, Any] = {}  # of its last step

    def begin_episode(self) -> None:
        """Forget the last one."""
        self.episode += 1
        self.episode_return = 0.0
        self.info = {}
        self.actions.clear()
        self.chosen.clear()
        self.descriptions.clear()
        self.past_actions.clear()
        self.past_choices.clear()
