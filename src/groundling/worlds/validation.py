"""Validation during training: figures of a held-out split at intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.io.row_files import BEFORE_ALL, RowFile, ValidationListener, due


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
