"""Validation of a writer during training."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.io.files import write_atomically
from groundling.io.row_files import BEFORE_ALL, RowFile, ValidationListener, due
from groundling.policies.policy import Policy
from groundling.worlds.world import World
from groundling.worlds.writing.collect import as_writer
from groundling.worlds.writing.measures import TextMeasures, write_texts


class ValidationLog:
    """Measures texts to the validation split during training; does nothing if evaluation.every is null.

    It measures before the first update, at the interval of evaluation.every, and after the last update. It appends to
    the run's ``validation.jsonl`` after the update that the run resumes from, writes ``predictions/val-UPDATE.jsonl``,
    and gives the listeners the figures as ``validation/NAME``.
    """

    def __init__(
        self,
        world: World,
        policy: Policy,
        run_dir: Path,
        update: int,
        last_step: int,
        listeners: Sequence[ValidationListener] = (),
    ) -> None:
        self._world, self._run_dir, self._last_step, self._listeners = world, run_dir, last_step, listeners
        self._every = world.evaluation.every
        if self._every is None:
            return
        self._policy = as_writer(policy)
        self._measures = TextMeasures.of_split(world, self._policy, "val")
        self._rows = RowFile(run_dir / "validation.jsonl", update or BEFORE_ALL)
        for path in (run_dir / "predictions").glob("val-[0-9]*.jsonl"):
            if int(path.stem.partition("-")[2]) > (update or BEFORE_ALL):  # their rows were dropped
                path.unlink()
        if not update:
            self._measure(0, 0)

    def log(self, row: Mapping[str, Any]) -> None:
        """Measure after the update with the figures ``row`` if it is due, or the last."""
        if self._every is not None and due(self._every, self._last_step, row):
            self._measure(row["update"], row["step"])

    def _measure(self, update: int, step: int) -> None:
        self._measures.forget()
        samples = self._measures.samples[: self._world.evaluation.episodes]
        measured = self._measures.measure(list(write_texts(self._policy, self._world, samples)))
        write_rows(self._run_dir / "predictions" / f"val-{update:06}.jsonl", measured.rows())
        self._rows.append({"update": update, "step": step, "metrics": as_json(measured.figures())})
        figures = {f"validation/{name}": value for name, value in measured.figures().items()}
        for listener in self._listeners:
            listener.log_validation(figures, update, step)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def as_json(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN, which JSON lacks, by None."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
