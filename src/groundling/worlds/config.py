"""Keys of the sections ``world`` and ``evaluation`` that every kind of world has; each kind adds its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from groundling.fields import Ge, Section
from groundling.io.row_files import BEFORE_ALL, RowFile, ValidationListener, due


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
        return int(getattr(self, self.ROWS))

    @property
    def steps_per_row(self) -> int:
        """Steps of each env in an update, or the largest number of tokens of a text."""
        return int(getattr(self, self.STEPS))

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


class ValidationLog:
    """Measures a split before the first update, every so many updates, and after the last one. It appends to the run's
    ``validation.jsonl`` after the update that the run resumes from; listeners get the figures as ``validation/NAME``.
    """

    def __init__(
        self,
        measure: Callable[[int], Mapping[str, float]],
        every: int,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener] = (),
    ) -> None:
        self._measure, self._every, self._last_step, self._listeners = measure, every, last_step, listeners
        self._rows = RowFile(run_dir / "validation.jsonl", update or BEFORE_ALL)
        if not update:
            self._append(0, 0)

    def log(self, row: Mapping[str, Any]) -> None:
        if due(self._every, self._last_step, row):
            self._append(row["update"], row["step"])

    def _append(self, update: int, step: int) -> None:
        figures = self._measure(update)
        metrics = {name: value if math.isfinite(value) else None for name, value in figures.items()}  # JSON has no NaN
        self._rows.append({"update": update, "step": step, "metrics": metrics})
        for listener in self._listeners:
            listener.log_validation({f"validation/{name}": value for name, value in figures.items()}, update, step)
