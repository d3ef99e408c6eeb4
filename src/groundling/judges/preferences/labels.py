"""What annotators said about a dataset's pairs: files of labels, one for each annotator."""

import json
import re
from enum import IntEnum
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import replace_file
from groundling.judges.preferences import parquet
from groundling.registry import unknown

Format = Literal["motif", "parquet"]
FORMATS = ("motif", "parquet")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_ROUNDING = 0.015
"""So far three probabilities may be from summing to 1: as far as two decimals each can bring them."""


class Preference(IntEnum):
    """The codes of a preference file."""

    FIRST = 0
    SECOND = 1
    TIE = 2
    UNKNOWN = 3
    """Not annotated, or annotated without a valid answer: no part of training, and asked again."""


class Labels:
    """The labels of N pairs in a dataset's folder: ``.npy`` files beside Motif's arrays, else Parquet files.

    Attributes:
        folder: The dataset's.
        format: "motif" or "parquet".
        count: N.
    """

    def __init__(self, folder: Path, format: Format, count: int) -> None:
        self.folder, self.format, self.count = folder, format, count

    def read_account(self, name: str) -> dict[str, Any]:
        """How the labels of an annotator were made; empty if they came without an account."""
        path = self.folder / "annotations" / f"{name}.json"
        try:
            return read_object(path, SETTINGS)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read ({error})") from error

    def write_account(self, name: str, account: dict[str, Any]) -> None:
        """Write how the labels of an annotator are made, as JSON holds it."""
        path = self.folder / "annotations" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(account, indent=1, ensure_ascii=False) + "\n"
        replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))

    def annotators(self) -> list[str]:
        """The names that `preferences` knows."""
        suffix = ".parquet" if self.format == "parquet" else ".npy"
        return sorted(path.name.partition(".")[0] for path in (self.folder / "preference").glob(f"*{suffix}"))

    def preferences(self, name: str) -> NDArray[np.int8]:
        """int8 (N,): what the annotator ``name`` said, as codes of `Preference`.

        Raises:
            ConfigError: there is no such annotator, or its file does not fit.
        """
        if name not in self.annotators():
            raise ConfigError(f"{self.folder}: {unknown('annotator', name, self.annotators())}")
        if self.format == "parquet":
            labels = parquet.read_preferences(self.folder, name)[0]
        else:
            labels = load_array(self.folder / "preference" / f"{name}.npy")
        _check_labels(labels, self.count, f"{self.folder}: preference {name}")
        return labels.astype(np.int8, copy=False)

    def soft_preferences(self, name: str) -> NDArray[np.float32] | None:
        """float32 (N, 3): the probabilities of first, second and tie, NaN where there are none; None if there are none
        at all.

        Raises:
            ConfigError: their file does not fit.
        """
        if self.format == "parquet":
            soft = parquet.read_preferences(self.folder, name)[1]
        else:
            path = self.folder / "soft_preference" / f"{name}.npy"
            soft = load_array(path) if path.exists() else None
        if soft is not None:
            _check_soft(soft, self.count, f"{self.folder}: soft preference {name}")
        return soft

    def write_preferences(
        self, name: str, labels: NDArray[np.integer], soft: NDArray[np.floating] | None = None
    ) -> None:
        """Write what the annotator ``name`` said, in place of what it had said before.

        Args:
            name: Letters, digits, ``-`` and ``_``.
            labels: (N,), codes of `Preference`.
            soft: (N, 3), probabilities of first, second and tie, which sum to 1; NaN where there are none.

        Raises:
            ConfigError: the name or the arrays do not fit.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"annotator's name {name!r}: use letters, digits, - and _")
        _check_labels(labels, self.count, f"labels of {name}")
        codes = labels.astype(np.int8)
        if soft is not None:
            soft = np.asarray(soft, dtype=np.float32)
            _check_soft(soft, self.count, f"soft labels of {name}")
        if self.format == "parquet":
            parquet.write_preferences(self.folder, name, codes, soft)
            return
        # Labels come last: those of an earlier call do not belong to these probabilities.
        for folder in ("preference", "soft_preference"):
            (self.folder / folder / f"{name}.npy").unlink(missing_ok=True)
        if soft is not None:
            _save(self.folder / "soft_preference" / f"{name}.npy", soft)
        _save(self.folder / "preference" / f"{name}.npy", codes)


def _check_labels(labels: NDArray, count: int, where: str) -> None:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise ConfigError(f"{where}: {labels.dtype} {labels.shape}, expected int8 ({count},)")
    if count and not (labels.min() >= 0 and labels.max() <= Preference.UNKNOWN):
        raise ConfigError(
            f"{where}: codes from {labels.min()} to {labels.max()}, expected 0 first, 1 second, 2 tie, 3 unknown"
        )


def _check_soft(soft: NDArray, count: int, where: str) -> None:
    if soft.shape != (count, 3) or soft.dtype.kind != "f":
        raise ConfigError(f"{where}: {soft.dtype} {soft.shape}, expected float32 ({count}, 3)")
    indices = np.flatnonzero(~np.isnan(soft).any(1))
    rows = soft[indices].astype(np.float64)
    outside = ((rows < -_ROUNDING) | (rows > 1 + _ROUNDING)).any(1)
    wrong = indices[outside | (np.abs(rows.sum(1) - 1) > _ROUNDING)]
    if len(wrong):
        raise ConfigError(
            f"{where}: row {wrong[0]} is {soft[wrong[0]].tolist()}, expected the probabilities of first, second and "
            "tie, which sum to 1: write those (of logits the softmax), or NaN where only the label is known"
        )


def load_array(path: Path) -> NDArray:
    """A file's array, memory-mapped and read-only.

    Raises:
        ConfigError: it is none, of objects, or has rows without values, of which a few bytes may announce any number.
    """
    try:
        array: NDArray = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, TypeError, OverflowError, SyntaxError, TokenError) as error:  # of its header
        raise ConfigError(f"{path} is no array that can be read ({error})") from error
    if not array.size and any(array.shape[:1]):
        raise ConfigError(
            f"{path} has {array.shape[0]:,} rows without values, its shape is {array.shape}: expected 1 value or more "
            "in each row"
        )
    return array


def _save(path: Path, array: NDArray) -> None:
    """Write beside and rename; several processes may write at once, the last one stays."""
    path.parent.mkdir(exist_ok=True)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:  # given a path, numpy would append .npy to it
            np.save(file, array, allow_pickle=False)

    replace_file(path, write)
