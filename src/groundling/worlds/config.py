"""Keys of the sections ``world`` and ``evaluation`` that every kind of world has; each kind adds its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from groundling.fields import Ge, Section


@dataclass(frozen=True)
class Use:
    """Use of a world by the config's other sections: it decides which of the world's settings have an effect."""

    demonstrated: bool = False  # The algorithm learns from a dataset or references
    learns_values: bool = True  # The algorithm learns a value function
    tells_entropy: bool = True  # The algorithm reports the policy's entropy
    policy_reads: bool = True  # The policy reads words
    captions_read: bool = True  # A part of the reward reads captions


class WorldConfig(Section):
    """Source of a run's experience."""

    ROWS: ClassVar[str] = "num_envs"
    """Key of the number of envs, or texts, of an update."""
    STEPS: ClassVar[str] = "num_steps"
    """Key of the number of steps of each env, or tokens of each text."""
    PLACE: ClassVar[str] = "id"
    """Key that names the world among those of its kind, as an env's id or a pool's."""

    id: str
    """The kind of world: one of `groundling list worlds`. An experiment sets it."""

    @property
    def num_rows(self) -> int:
        """Envs stepped together, or texts written in an update."""
        rows: int = getattr(self, self.ROWS)
        return rows

    @property
    def steps_per_row(self) -> int:
        """Steps of each env in an update, or the largest number of tokens of a text."""
        steps: int = getattr(self, self.STEPS)
        return steps

    def check(self) -> None:
        """Raise `ConfigError` if a value names something that does not exist, or contradicts another; load nothing."""

    def unused(self, use: Use) -> Mapping[str, str]:
        """Return the keys without effect in this world as it is set and used, each with the reason."""
        return {}


def unused_in_play(use: Use) -> dict[str, str]:
    """Return the keys without effect that worlds with episodes share, each with the reason."""
    idle = {}
    if not use.learns_values:
        idle["world.bootstrap_truncated"] = "its algorithm learns no value function"
    if not use.tells_entropy:
        idle["world.entropy_floor"] = "its algorithm does not report the policy's entropy"
    return idle


class EvaluationConfig(Section):
    """Held-out episodes."""

    episodes: Annotated[int, Ge(1)] = 1000
    """Episodes to play; of the validation split, texts or transitions to measure at most."""
    baselines: list[str] = ["zero-shot"]
    """Agents to compare the trained policy with on the same episodes: zero-shot, the world's own agents, and clone
    where the run cloned first (cloning.episodes)."""

    def check(self) -> None:
        """Raise `ConfigError` if a value names something that does not exist; load nothing."""
