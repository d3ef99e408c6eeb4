"""Base classes of the config sections ``world`` and ``evaluation``; each kind of world adds its own keys."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from groundling.fields import Ge, Section
from groundling.io.row_files import BEFORE_ALL, RowFile, ValidationListener, due


@dataclass(frozen=True)
class Use:
    """Facts about the rest of the config that determine which of a world's settings have an effect."""

    demonstrated: bool = False  # The algorithm learns from a dataset or references
    learns_values: bool = True  # The algorithm learns a value function
    tells_entropy: bool = True  # The algorithm reports the policy's entropy
    policy_reads: bool = True  # The policy reads text
    captions_read: bool = True  # Part of the reward reads captions


class WorldConfig(Section):
    """The source of a run's experience."""

    ROWS: ClassVar[str] = "num_envs"
    """The key for the number of envs or texts per update."""
    STEPS: ClassVar[str] = "num_steps"
    """The key for the number of steps per env or tokens per text."""
    PLACE: ClassVar[str] = "id"
    """The key that selects the env, task or pool, such as ``env`` or ``pool``."""

    id: str
    """The kind of world (see `groundling list worlds`), set by the experiment."""

    @property
    def num_rows(self) -> int:
        """The number of envs stepped together, or of texts generated per update."""
        return int(getattr(self, self.ROWS))

    @property
    def steps_per_row(self) -> int:
        """The number of steps of each env per update, or the maximum number of tokens per text."""
        return int(getattr(self, self.STEPS))

    def check(self) -> None:
        """Raise `ConfigError` if a value is unknown or values contradict each other, without loading anything."""

    def unused(self, use: Use) -> Mapping[str, str]:
        """Return the keys that have no effect with these settings and this use, mapped to the reasons."""
        return {}


def unused_in_play(use: Use) -> dict[str, str]:
    """Return the keys shared by all worlds with episodes that have no effect, mapped to the reasons."""
    idle = {}
    if not use.learns_values:
        idle["world.bootstrap_truncated"] = "the algorithm does not learn a value function"
    if not use.tells_entropy:
        idle["world.entropy_floor"] = "the algorithm does not report the policy's entropy"
    return idle


class EvaluationConfig(Section):
    """Settings for held-out episodes."""

    episodes: Annotated[int, Ge(1)] = 1000
    """Number of episodes to play; for the validation split, the maximum number of texts or transitions to measure."""
    baselines: list[str] = ["zero-shot"]
    """Agents to compare the trained policy with on the same episodes: zero-shot, the world's own baselines, and clone
    if the run started with cloning (cloning.episodes)."""

    def check(self) -> None:
        """Raise `ConfigError` if a value refers to something unknown, without loading anything."""


class ValidationLog:
    """Evaluates a split before the first update, every ``every`` updates, and after the last one. Rows after ``update``
    are removed from ``validation.jsonl``. New metrics are appended, and sent to listeners as ``validation/NAME``.
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
