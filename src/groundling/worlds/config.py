"""What a config's sections ``world`` and ``evaluation`` say in every kind of world; each kind adds its own keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

from omegaconf import MISSING

from groundling.fields import Ge


@dataclass(frozen=True)
class Use:
    """What the config's other sections make of a world, as far as it decides which of its settings do something."""

    demonstrated: bool = False
    """Whether the algorithm learns from what a dataset or references show."""
    learns_values: bool = True
    """Whether the algorithm learns a value function."""
    tells_entropy: bool = True
    """Whether the algorithm tells the policy's entropy."""
    policy_reads: bool = True
    """Whether the policy reads words."""
    captions_read: bool = True
    """Whether a part of the reward reads what happened."""


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

    def in_play(self) -> Self:
        """The same settings without instruments of training, for an agent that is only played."""
        return self

    def check(self) -> None:
        """Raise `ConfigError` where a value, or what it names, does not exist; nothing is loaded for it."""

    def unused(self, use: Use) -> Mapping[str, str]:
        """The keys that do nothing in this world as it is set and used, each with the reason."""
        return {}


def unused_in_play(use: Use) -> dict[str, str]:
    """Of the keys that worlds with episodes share, those that do nothing, each with the reason."""
    idle = {}
    if not use.learns_values:
        idle["world.bootstrap_truncated"] = "its algorithm learns no value function"
    if not use.tells_entropy:
        idle["world.entropy_floor"] = "its algorithm does not report the policy's entropy"
    return idle


@dataclass
class EvaluationConfig:
    """Held-out episodes."""

    episodes: Annotated[int, Ge(1)] = 1000
    """How many are played; of the validation split, how many texts or transitions are measured at most."""
    baselines: list[str] = field(default_factory=lambda: ["zero-shot"])
    """What the trained policy is compared with on the same episodes: zero-shot, the world's own agents,
    and clone where the run cloned first (cloning.episodes)."""

    def check(self) -> None:
        """Raise `ConfigError` where what a value names does not exist; nothing is loaded for it."""
