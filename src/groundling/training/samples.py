"""Samples of the rollouts of a training run."""

from pathlib import Path
from typing import Any

from groundling.io.row_files import RowFile
from groundling.worlds.collector import Collector

_UPDATES = 50
"""Updates with samples, besides the first."""
_SAMPLES = 4
"""Samples of an update."""


class SampleLog:
    """Write the first samples of some rollouts to the run's ``samples/train.jsonl``, if its world has any.

    The updates are spread evenly over the training, and depend on steps alone: a resumed run keeps the same ones.
    """

    def __init__(self, collector: Collector, run_dir: Path, update: int, num_steps: int) -> None:
        self._collector, self._num_steps = collector, num_steps
        self._path = run_dir / "samples" / "train.jsonl"
        self._rows = RowFile(self._path, update) if self._path.exists() else None
        self._last_step = 0 if self._rows is None else self._rows.last_step

    def log(self, row: dict[str, Any]) -> None:
        """Write samples of the update whose figures are ``row``, if one is due."""
        points = [_UPDATES * step // self._num_steps for step in (self._last_step, row["step"])]
        if self._last_step and points[0] == points[1]:
            return
        for sample in self._collector.samples()[:_SAMPLES]:
            if self._rows is None:
                self._path.parent.mkdir(exist_ok=True)
                self._rows = RowFile(self._path, row["update"])
            self._rows.append({"update": row["update"], "step": row["step"], **sample})
            self._last_step = row["step"]
