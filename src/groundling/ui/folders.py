"""What lies below the folders that are shown: runs, datasets of preferences, and studies' results."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from groundling.files import LOCK, is_locked

Kind = Literal["run", "pairs", "study"]
_DEEPEST = 5
"""Folders below the one that is named."""
_INNER = {"checkpoints", "tensorboard", "samples", "evaluation", "predictions", "wandb"}
"""Folders of a run, which hold no further ones."""


@dataclass(frozen=True)
class Folder:
    """Something that can be shown."""

    id: str
    """As addresses name it: its path from the folder that was named, and that one's name before it."""
    path: Path
    kind: Kind

    @property
    def changed(self) -> float:
        """When it was last written to, in seconds since 1970."""
        names = {"run": ("metrics.jsonl", "config.yaml"), "pairs": ("preference",), "study": ("README.md",)}
        times = [
            (self.path / name).stat().st_mtime for name in names[self.kind] if (self.path / name).exists()
        ]
        return max(times, default=0.0)

    @property
    def is_live(self) -> bool:
        """Whether a process of this machine trains it now."""
        return self.kind == "run" and is_locked(self.path / LOCK)


def find_folders(roots: Sequence[Path]) -> dict[str, Folder]:
    """What lies in the folders and below them, by id; links are not followed."""
    found: dict[str, Folder] = {}
    for number, root in enumerate(roots):
        name = root.resolve().name or "root"
        if any(other.resolve().name == name for other in roots[:number]):
            name = f"{name}-{number + 1}"
        for path, kind in _below(root):
            id = "/".join((name, *path.relative_to(root).parts))
            found[id] = Folder(id, path, kind)
    return found


def _below(root: Path) -> Iterator[tuple[Path, Kind]]:
    for place, folders, files in os.walk(root):
        path = Path(place)
        kind = _kind(set(folders), {name for name in files if not (path / name).is_symlink()})
        if kind is not None:
            yield path, kind
        deep = len(path.relative_to(root).parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(f for f in folders if f not in _INNER and not f.startswith("."))


def _kind(folders: set[str], files: set[str]) -> Kind | None:
    if "config.yaml" in files and ("metrics.jsonl" in files or "checkpoints" in folders):
        return "run"
    if {"preference", "data"} <= folders:
        return "pairs"
    if {"summary.csv", "README.md"} <= files:
        return "study"
    return None
