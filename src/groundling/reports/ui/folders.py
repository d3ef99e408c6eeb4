"""The folders that the UI shows (runs, preference datasets, study results), and a run's curves."""

import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundling.errors import ConfigError, RunError
from groundling.io.files import LOCK, is_locked
from groundling.reports.plots import Rows, points, smooth_curve, thinned
from groundling.training.tracking import METRICS, read_metrics

Kind = Literal["run", "pairs", "study"]
_MAX_DEPTH = 5  # levels of folders below a root
_INNER = {"checkpoints", "tensorboard", "samples", "evaluation", "predictions", "wandb"}  # these contain no runs
_FILES_OF_RUN = ("config.yaml", "metrics.jsonl", "validation.jsonl", "probes.jsonl", "predictions")
_FOLDERS_OF_RUN = ("samples", "evaluation", "predictions")


@dataclass(frozen=True)
class Folder:
    """A folder that the UI shows."""

    id: str  # path from the root, including the root's name, as used in URLs
    path: Path
    kind: Kind

    def check_links(self) -> None:
        """Raise `ConfigError` if one of the folder's files is a symlink, which may point outside the folder.

        A run's ``samples`` and ``evaluation`` folders may be symlinks, but the files in them may not. Symlinks in a
        study's folder are ignored.
        """
        if self.kind == "pairs":
            paths: Iterator[Path] = self.path.rglob("*")
        else:
            folders = (path for name in _FOLDERS_OF_RUN for path in (self.path / name).glob("*"))
            paths = chain((self.path / name for name in _FILES_OF_RUN), folders)
        for path in paths:
            if path.is_symlink():
                raise ConfigError(f"{path} is a symlink, which is not followed: replace it with the file itself")

    @property
    def changed(self) -> float:
        """Modification time, in seconds since 1970."""
        names = {"run": ("metrics.jsonl", "config.yaml"), "pairs": ("preference",), "study": ("README.md",)}
        times = [(self.path / name).lstat().st_mtime for name in names[self.kind] if os.path.lexists(self.path / name)]
        return max(times, default=0.0)

    @property
    def is_live(self) -> bool:
        """True if a process on this machine is training the run."""
        return self.kind == "run" and is_locked(self.path / LOCK)


def find_folders(roots: Sequence[Path]) -> dict[str, Folder]:
    """Return the folders in and below the roots by id, without following symlinks."""
    found: dict[str, Folder] = {}
    for root in roots:
        for path, kind in _below(root):
            id = "/".join((root.resolve().name or "root", *path.relative_to(root).parts))
            id = os.fsencode(id).decode("utf-8", "replace")
            while id in found:  # roots may share a name, and replacing invalid UTF-8 may make names equal
                id += "+"
            found[id] = Folder(id, path, kind)
    return found


def _is_regular(path: Path) -> bool:
    """Return True for a regular file, False for a symlink or a pipe (reading a pipe would block)."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # the file was deleted
        return False


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


_MAX_SMOOTH = 1000  # maximum number of points in a smoothed curve


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return a run's metrics, rereading the file only if it has changed; raise `RunError` if a row is invalid."""
    path = run_dir / METRICS
    return _metrics_of(run_dir, (path.stat().st_mtime_ns, path.stat().st_size)) if path.exists() else []


@lru_cache(maxsize=16)
def _metrics_of(run_dir: Path, version: tuple[int, int]) -> list[dict[str, Any]]:
    rows = read_metrics(run_dir)
    for row in rows:
        for name, value in row.items():
            if value is not None and not isinstance(value, int | float):
                path, update = run_dir / METRICS, row["update"]
                raise RunError(f"{path} is damaged: {name}={value!r:.40} in update {update} is not a number")
    return rows


def curves_of(rows: Rows, figures: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Return at most a few thousand points per metric: ``x``, ``y``, and a moving mean ``smooth_x``, ``smooth_y``."""
    curves = {}
    for name in figures:
        finite = [row for row in rows if (value := row.get(name)) is not None and math.isfinite(value)]
        if finite:
            x, y = thinned(*points(finite, name))
            steps, means = smooth_curve(finite, name)
            places = np.unique(np.linspace(0, len(steps) - 1, min(_MAX_SMOOTH, len(steps))).round().astype(int))
            drawn = {"x": x, "y": y, "smooth_x": steps[places], "smooth_y": means[places]}
            curves[name] = {axis: values.tolist() for axis, values in drawn.items()}
    return curves
