"""Preference datasets: pairs of segments from one world, and annotators' labels."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from groundling.errors import ConfigError, unknown
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.judges.preferences import npy, parquet


class TextSegment(NamedTuple):
    """A segment from a text world, or a generated text."""

    context: str  # an agent's goal or a text's prompt; may be empty
    captions: Annotated[list[str], MinLen(1)]  # the observation and action of each step, or the text
    outcome: str = ""  # the observation after the last step; read by judges but not by reward models


def caption_id(caption: str) -> int:
    """Return a signed 64-bit hash that is the same on all machines (for 1e6 captions, P(collision) is 3e-8)."""
    content = caption.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def caption_ids(captions: Iterable[str]) -> NDArray[np.int64]:
    """Return the `caption_id` of each caption, int64 ``(n,)``."""
    return np.fromiter(map(caption_id, captions), np.int64)


_ROUNDING = 0.015  # tolerance for the sum of three probabilities, which may be rounded to two decimals


class Preference(IntEnum):
    """Label codes, as stored in label files."""

    FIRST = 0
    SECOND = 1
    TIE = 2
    UNKNOWN = 3  # no valid answer; the pair is not used for training and is judged again

    @property
    def swapped(self) -> "Preference":
        """The preference for the same pair in reverse order."""
        return Preference(1 - self) if self <= Preference.SECOND else self


_STATUS = [12, 13, 10, 11, 18, 21]  # indices into NLE's blstats: depth, gold, HP, maximum HP, level, hunger
_HUNGER_WORDS = ("satiated", "not hungry", "hungry", "weak", "fainting", "fainted", "starved")


def caption(messages: NDArray[np.uint8], blstats: NDArray[np.integer] | None = None) -> str:
    """Return a segment's messages, uint8 ``(L, 256)``, as text, followed by its last state if ``blstats`` is passed."""
    lines = [join_captions(map(decode, messages))]
    if blstats is not None:
        depth, gold, hp, most_hp, level, hunger = blstats[-1][_STATUS].tolist()
        word = _HUNGER_WORDS[hunger] if 0 <= hunger < len(_HUNGER_WORDS) else "not hungry"
        lines.append(f"Status: depth {depth}, gold {gold}, HP {hp} of {most_hp}, experience level {level}, {word}")
    return "\n".join(filter(None, lines))


def join_captions(captions: Iterable[str]) -> str:
    """Join captions with newlines; consecutive equal captions become ``caption (xN)``.

    Empty captions are dropped afterwards, so equal captions on both sides of an empty one are not merged.
    """
    counted = ((caption, len(list(same))) for caption, same in groupby(captions))
    return "\n".join(text if count == 1 else f"{text} (x{count})" for text, count in counted if text)


def decode(message: NDArray[np.uint8]) -> str:
    """Return the text of a message, uint8 ``(256,)``, up to its first NUL."""
    return message.tobytes().partition(b"\0")[0].decode("latin-1")


def decode_pairs(messages: NDArray[np.uint8]) -> list[tuple[list[str], list[str]]]:
    """Decode uint8 ``(N, 2, L, 256)`` into pairs of L strings each; Latin-1 preserves every byte except the padding."""
    rows = np.ascontiguousarray(messages).reshape(-1, 256).view("S256")[:, 0].tolist()  # without trailing NULs
    texts = [row.decode("latin-1") for row in rows]
    length = messages.shape[2]
    segments = [texts[start : start + length] for start in range(0, len(texts), length)]
    return list(zip(segments[::2], segments[1::2], strict=True))


Format = Literal["motif", "parquet"]
FORMATS: dict[str, ModuleType] = {"motif": npy, "parquet": parquet}  # modules that read and write data and labels
ANSWERS = "answers"  # default folder of a dataset's answers (`groundling.judges.preferences.store`)
DESCRIPTION = "recording.json"  # file that describes the world, the players and their settings
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair of segments as a judge reads it."""

    first: str
    second: str
    context: str = ""  # shared by both and shown once: the prompt of two texts or the goal of two episodes


class Pairs(ABC):
    """A folder with N pairs of segments from one world, opened by `groundling.judges.open_pairs`.

    Attributes:
        world: The kind of world, a key of `groundling.judges.asking.questions.subjects`.
        info: Recorded values of the segments by key, ``(N, 2)``.
    """

    world: str

    def __init__(self, folder: Path, format: Format, count: int, info: Mapping[str, NDArray]) -> None:
        self.folder, self.format, self.info, self._count = folder, format, info, count
        self._files = FORMATS[format]

    def __len__(self) -> int:
        return self._count

    @abstractmethod
    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        """Return each pair as a judge reads it; ``blstats`` adds the player's state in NetHack after each segment."""

    @abstractmethod
    def segments(self) -> list[tuple[list[str], list[str]]]:
        """Return each pair of segments as reward models read it: one or more captions per segment."""

    @abstractmethod
    def returns(self) -> NDArray:
        """Return each segment's sum of rewards, float ``(N, 2)``; raise `ConfigError` if there are no rewards."""

    def annotators(self) -> list[str]:
        """Return the names of all annotators with labels."""
        suffix = self._files.SUFFIX
        return sorted(path.name.partition(".")[0] for path in (self.folder / "preference").glob(f"*{suffix}"))

    def preferences(self, name: str) -> NDArray[np.int8]:
        """Return an annotator's labels, int8 ``(N,)``: codes of `Preference`."""
        if name not in self.annotators():
            raise ConfigError(f"{self.folder}: {unknown('annotator', name, self.annotators())}")
        labels: NDArray = self._files.read_labels(self.folder, name)[0]
        self._check(labels, None, f"{self.folder}: preference {name}")
        return labels.astype(np.int8, copy=False)

    def soft_preferences(self, name: str) -> NDArray[np.float32] | None:
        """Return probabilities of first, second and tie, float32 ``(N, 3)``, NaN where unknown; None if not stored."""
        soft: NDArray | None = self._files.read_labels(self.folder, name)[1]
        self._check(None, soft, f"{self.folder}: preference {name}")
        return soft

    def write_preferences(
        self, name: str, labels: NDArray[np.integer], soft: NDArray[np.floating] | None = None
    ) -> None:
        """Replace an annotator's labels.

        Args:
            labels: Codes of `Preference`, ``(N,)``.
            soft: Probabilities of first, second and tie, ``(N, 3)``, which sum to 1; NaN where unknown.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"invalid annotator name {name!r}: use only letters, digits, - and _")
        soft = None if soft is None else np.asarray(soft, dtype=np.float32)
        self._check(labels, soft, f"labels of {name}")
        self._files.write_labels(self.folder, name, labels.astype(np.int8), soft)

    def _check(self, labels: NDArray | None, soft: NDArray | None, where: str) -> None:
        """Check that labels are codes, and that rows of soft labels are NaN or probabilities that sum to 1."""
        count = len(self)
        if labels is not None:
            if labels.shape != (count,) or labels.dtype.kind not in "iu":
                raise ConfigError(f"{where}: got {labels.dtype} {labels.shape}, expected int8 ({count},)")
            if not np.isin(labels, list(Preference)).all():
                raise ConfigError(f"{where}: got {np.unique(labels)}, expected 0 to 3 (first, second, tie, unknown)")
        if soft is None:
            return
        if soft.shape != (count, 3) or soft.dtype.kind != "f":
            raise ConfigError(f"{where}: got {soft.dtype} {soft.shape}, expected float32 ({count}, 3)")
        rows = soft.astype(np.float64)
        outside = ((rows < -_ROUNDING) | (rows > 1 + _ROUNDING)).any(1) | (np.abs(rows.sum(1) - 1) > _ROUNDING)
        if len(wrong := np.flatnonzero(outside & ~np.isnan(rows).any(1))):
            raise ConfigError(
                f"{where}: row {wrong[0]} is {soft[wrong[0]].tolist()}, expected the probabilities of first, second "
                "and tie, which sum to 1, or NaN where only the label is known (if these are logits, apply a softmax)"
            )

    def read_provenance(self, name: str) -> dict[str, Any]:
        """Return a description of how an annotator's labels were created; empty if unknown."""
        path = self.folder / "annotations" / f"{name}.json"
        try:
            return read_object(path, SETTINGS)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read ({error})") from error

    def write_provenance(self, name: str, provenance: dict[str, Any]) -> None:
        """Write a description of how an annotator's labels were created, as JSON."""
        path = self.folder / "annotations" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(provenance, indent=1, ensure_ascii=False) + "\n")
