"""Preference datasets: pairs of segments of one world, and the labels of annotators."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, unknown
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.judges.preferences import npy, parquet
from groundling.judges.preferences.labels import check_labels, check_soft_labels

Format = Literal["motif", "parquet"]
FORMATS: dict[str, ModuleType] = {"motif": npy, "parquet": parquet}  # modules that read and write data and labels
ANSWERS = "answers"  # default folder of a dataset's answers (`groundling.judges.preferences.store`)
DESCRIPTION = "recording.json"  # file that names the world, the players and their settings
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair of segments as a judge reads it."""

    first: str
    second: str
    context: str = ""  # shared by both, and shown once: the prompt of two texts, the goal of two episodes


class Pairs(ABC):
    """A folder with N pairs of segments of one world, opened by `groundling.judges.open_pairs`.

    Attributes:
        world: The kind of world: an id of `groundling.judges.asking.subjects`.
        info: Figures of the segments by key, ``(N, 2)``.
    """

    world: str

    def __init__(self, folder: Path, format: Format, count: int, info: Mapping[str, NDArray]) -> None:
        self.folder, self.format, self.info, self._count = folder, format, info, count
        self._files = FORMATS[format]

    def __len__(self) -> int:
        return self._count

    @abstractmethod
    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        """Return each pair as a judge reads it; with ``blstats`` NetHack's state after each segment."""

    @abstractmethod
    def segments(self) -> list[tuple[list[str], list[str]]]:
        """Return each pair of segments as reward models read it: one caption or more for each segment."""

    @abstractmethod
    def returns(self) -> NDArray:
        """Return the sum of each segment's rewards, float ``(N, 2)``; `ConfigError` if the dataset has no rewards."""

    def annotators(self) -> list[str]:
        """Return the names of all annotators with labels."""
        suffix = self._files.SUFFIX
        return sorted(path.name.partition(".")[0] for path in (self.folder / "preference").glob(f"*{suffix}"))

    def preferences(self, name: str) -> NDArray[np.int8]:
        """Return an annotator's labels, int8 ``(N,)``: codes of `Preference`."""
        if name not in self.annotators():
            raise ConfigError(f"{self.folder}: {unknown('annotator', name, self.annotators())}")
        labels: NDArray = self._files.read_labels(self.folder, name)[0]
        check_labels(labels, len(self), f"{self.folder}: preference {name}")
        return labels.astype(np.int8, copy=False)

    def soft_preferences(self, name: str) -> NDArray[np.float32] | None:
        """Return an annotator's probabilities of first, second and tie, float32 ``(N, 3)``, or NaN; or None."""
        soft: NDArray | None = self._files.read_labels(self.folder, name)[1]
        if soft is not None:
            check_soft_labels(soft, len(self), f"{self.folder}: soft preference {name}")
        return soft

    def write_preferences(
        self, name: str, labels: NDArray[np.integer], soft: NDArray[np.floating] | None = None
    ) -> None:
        """Replace an annotator's labels.

        Args:
            labels: ``(N,)``: codes of `Preference`.
            soft: ``(N, 3)``: probabilities of first, second and tie, which sum to 1; NaN where unknown.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"annotator's name {name!r}: use letters, digits, - and _")
        check_labels(labels, len(self), f"labels of {name}")
        if soft is not None:
            soft = np.asarray(soft, dtype=np.float32)
            check_soft_labels(soft, len(self), f"soft labels of {name}")
        self._files.write_labels(self.folder, name, labels.astype(np.int8), soft)

    def read_provenance(self, name: str) -> dict[str, Any]:
        """Return how an annotator's labels were made; empty if unknown."""
        path = self._provenance_path(name)
        try:
            return read_object(path, SETTINGS)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read ({error})") from error

    def write_provenance(self, name: str, provenance: dict[str, Any]) -> None:
        """Write how an annotator's labels were made, as JSON."""
        path = self._provenance_path(name)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(provenance, indent=1, ensure_ascii=False) + "\n")

    def _provenance_path(self, name: str) -> Path:
        return self.folder / "annotations" / f"{name}.json"
