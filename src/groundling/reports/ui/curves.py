"""Curves of runs, stored by column and thinned for plots."""

import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundling.errors import RunError
from groundling.reports.plots import smooth, thinned
from groundling.training.tracking import METRICS, read_metrics

_MAX_SMOOTH = 1000  # largest number of points of a smoothed curve


class Curves:
    """A run's metrics over steps."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._lock = run_dir, threading.Lock()
        self._columns: dict[str, tuple[array[float], array[float]]] = {}
        self._last: dict[str, Any] = {}
        self._version: tuple[int, int] | None = None  # time of change and size of the file that was read
        self.num_rows = 0

    def update(self) -> None:
        """Read the rows if their file has changed; raise `RunError` if one is invalid, or a metric is no number."""
        with self._lock:  # several views may read in parallel
            path = self._run_dir / METRICS
            status = path.stat() if path.exists() else None
            version = None if status is None else (status.st_mtime_ns, status.st_size)
            if version == self._version:
                return
            self._columns, self._last, self._version = {}, {}, None
            rows = read_metrics(self._run_dir)
            for row in rows:
                self._add(row)
            self._version, self.num_rows = version, len(rows)

    def _add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if value is not None and not isinstance(value, int | float):
                path, update = self._run_dir / METRICS, row["update"]
                raise RunError(f"{path} is damaged: {name}={value!r:.40} of update {update} is not a number")
            if value is not None and name not in ("update", "step"):
                steps, values = self._columns.setdefault(name, (array("d"), array("d")))
                steps.append(row["step"])
                values.append(value)
        self._last.update({name: value for name, value in row.items() if value is not None})

    def outline(self) -> list[dict[str, Any]]:
        """Return rows with each metric's smallest, greatest and latest value; none before the first update."""
        with self._lock:
            if not self.num_rows:
                return []
            ends = [
                {**self._last, **{name: float(pick(values)) for name, (_, values) in self._columns.items()}}
                for pick in (min, max)
            ]
            return [*ends, dict(self._last)]

    def drawn(self, figures: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """Return by metric a few thousand points: ``x``, ``y``, and its moving mean ``smooth_x``, ``smooth_y``."""
        with self._lock:
            columns = {
                name: [np.array(one) for one in self._columns[name]] for name in figures if name in self._columns
            }
        curves = {}
        for name, (steps, values) in columns.items():
            finite = np.isfinite(values)
            steps, values = steps[finite], values[finite]
            if not len(steps):
                continue
            x, y = thinned(steps, values)
            places = np.unique(np.linspace(0, len(steps) - 1, min(_MAX_SMOOTH, len(steps))).round().astype(int))
            means = smooth(values, np.ones_like(values))
            curves[name] = {
                "x": x.tolist(),
                "y": y.tolist(),
                "smooth_x": steps[places].tolist(),
                "smooth_y": means[places].tolist(),
            }
        return curves
