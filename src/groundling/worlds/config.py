"""What a config's sections ``world`` and ``evaluation`` say in every kind of world; each kind adds its own keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from groundling.arguments import at_least


@dataclass
class WorldConfig:
    """Where a run's experience comes from."""

    id: str = MISSING
    """The kind of world: one of `groundling list worlds`. An experiment says it."""

    ROWS: ClassVar[str] = "num_envs"
    """The key that tells how many envs, or texts, an update is made of."""
    STEPS: ClassVar[str] = "num_steps"
    """The key that tells how many steps of each of them."""

    PLACE: ClassVar[str] = "id"
    """The key that tells which of the worlds of this kind it is, as an env's id or a pool's."""

    @property
    def num_rows(self) -> int:
        """Envs that are stepped together, or texts that are written in an update."""
        rows: int = getattr(self, self.ROWS)
        return rows

    @property
    def steps_per_row(self) -> int:
        """Of an update: steps of each env, or tokens of a text at most."""
        steps: int = getattr(self, self.STEPS)
        return steps

    def check(self) -> None:
        """Raise `ConfigError` where a value, or what it names, does not exist; nothing is loaded for it."""

    def unused(self, demonstrated: bool) -> Mapping[str, str]:
        """The keys that do nothing in this world as it is set, each with the reason.

        Args:
            demonstrated: Whether the algorithm learns from what a dataset or references show.
        """
        return {}


@dataclass
class EvaluationConfig:
    """Held-out episodes."""

    episodes: int = at_least(1, 1000)
    """How many are played; of the validation split, how many texts or transitions are measured at most."""
    baselines: list[str] = field(default_factory=lambda: ["zero-shot"])
    """What the trained policy is compared with on the same episodes: zero-shot, and the world's own agents."""

    def check(self) -> None:
        """Raise `ConfigError` where what a value names does not exist; nothing is loaded for it."""
