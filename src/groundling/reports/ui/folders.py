"""Folders to show: runs, datasets of preferences, and results of studies."""

import os
import stat
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundling.errors import ConfigError, RunError
from groundling.io.files import LOCK, is_locked
from groundling.reports.plots import smooth, thinned
from groundling.training.tracking import METRICS, read_metrics

Kind = Literal["run", "pairs", "study"]
_MAX_DEPTH = 5  # levels of folders below a root
_INNER = {"checkpoints", "tensorboard", "samples", "evaluation", "predictions", "wandb"}  # have no runs
_FILES_OF_RUN = ("config.yaml", "metrics.jsonl", "validation.jsonl", "probes.jsonl", "predictions")
_FOLDERS_OF_RUN = ("samples", "evaluation", "predictions")


@dataclass(frozen=True)
class Folder:
    """A folder to show."""

    id: str  # its path from the root, with the root's name, as in addresses
    path: Path
    kind: Kind

    def check_links(self) -> None:
        """Raise `ConfigError` if one of its files is a link, which may lead out of it.

        A run's folders ``samples`` and ``evaluation`` may be links, but not their files; links in a study are ignored.
        """
        if self.kind == "pairs":
            paths: Iterator[Path] = self.path.rglob("*")
        else:
            folders = (path for name in _FOLDERS_OF_RUN for path in (self.path / name).glob("*"))
            paths = chain((self.path / name for name in _FILES_OF_RUN), folders)
        for path in paths:
            if path.is_symlink():
                raise ConfigError(f"{path} is a link, which is not followed: put the file itself there")

    @property
    def changed(self) -> float:
        """Time of the last change, in seconds since 1970."""
        names = {"run": ("metrics.jsonl", "config.yaml"), "pairs": ("preference",), "study": ("README.md",)}
        times = [(self.path / name).lstat().st_mtime for name in names[self.kind] if os.path.lexists(self.path / name)]
        return max(times, default=0.0)

    @property
    def is_live(self) -> bool:
        """True if a process on this machine is training it."""
        return self.kind == "run" and is_locked(self.path / LOCK)


def find_folders(roots: Sequence[Path]) -> dict[str, Folder]:
    """Find folders in and below the roots, by id, without following links."""
    found: dict[str, Folder] = {}
    for number, root in enumerate(roots):
        name = root.resolve().name or "root"
        if any(other.resolve().name == name for other in roots[:number]):
            name = f"{name}-{number + 1}"
        for path, kind in _below(root):
            id = _utf8("/".join((name, *path.relative_to(root).parts)))
            while id in found:  # two names that are not UTF-8 may look equal
                id += "+"
            found[id] = Folder(id, path, kind)
    return found


def _is_regular(path: Path) -> bool:
    """True for a regular file: no link, and no pipe, which would block."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # it was deleted
        return False


def _utf8(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")


def _below(root: Path) -> Iterator[tuple[Path, Kind]]:
    for place, folders, files in os.walk(root):
        path = Path(place)
        kind = _kind(set(folders), {name for name in files if _is_regular(path / name)})
        if kind is not None:
            yield path, kind
        deep = len(path.relative_to(root).parts) >= _MAX_DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if f not in _INNER and not f.startswith("."))


def _kind(folders: set[str], files: set[str]) -> Kind | None:
    if "config.yaml" in files and ("metrics.jsonl" in files or "checkpoints" in folders):
        return "run"
    if {"preference", "data"} <= folders:
        return "pairs"
    if {"summary.csv", "README.md"} <= files:
        return "study"
    return None


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
