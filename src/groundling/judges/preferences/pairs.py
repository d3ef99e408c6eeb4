"""Preference datasets: pairs of NetHack segments, and what annotators said about them.

Two formats. ``motif`` is the layout of the published Motif data, ``.npy`` files that are memory-mapped::

    DIR/data/<key>.npy              message uint8 (N, 2, L, 256), blstats (N, 2, L, 27), ...
    DIR/info/<key>.npy              score, turns, ...: (N, 2)
    DIR/preference/<annotator>.npy  int8 (N,): 0 first, 1 second, 2 tie, 3 unknown
    DIR/soft_preference/<annotator>.npy   float32 (N, 3); ours, beside the original's
    DIR/annotations/<annotator>.json      how they were made; ours, too

``parquet`` holds the same and opens in Hugging Face ``datasets``: see `groundling.judges.preferences.parquet`.
"""

import json
import re
import shutil
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.files import replace_file
from groundling.judges.preferences.captions import caption
from groundling.registry import unknown

Format = Literal["motif", "parquet"]
Arrays = Mapping[str, NDArray]
FORMATS = ("motif", "parquet")
ANSWERS = "answers"
"""In a dataset's folder, where its answers are kept (`groundling.judges.preferences.store`) unless named otherwise."""

TAILS: dict[str, tuple[int, ...]] = {
    "message": (256,),
    "blstats": (27,),
    "tty_chars": (24, 80),
    "tty_colors": (24, 80),
    "rewards": (),
}
"""By data key, the shape after (N, 2, L); other keys may have any."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Preference(IntEnum):
    """The codes of a preference file."""

    FIRST = 0
    SECOND = 1
    TIE = 2
    UNKNOWN = 3
    """Not annotated, or annotated without a valid answer: no part of training, and asked again."""


class Pairs:
    """A folder with N pairs of segments of L steps each.

    Attributes:
        folder: Where it lies.
        format: "motif" or "parquet".
        data: By key, the arrays (N, 2, L, ...); of ``motif`` memory-mapped and read-only.
        info: By key, the arrays (N, 2), one figure per segment.
    """

    def __init__(self, folder: Path, format: Format, data: Arrays, info: Arrays) -> None:
        check(data, info, str(folder))
        self.folder, self.format, self.data, self.info = folder, format, data, info

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a dataset of either format; of ``motif`` nothing is read yet.

        Raises:
            ConfigError: there is none, or its arrays do not fit together.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ConfigError(f"{folder} is no folder: expected a dataset of preference pairs")
        if any((folder / "data").glob("*.parquet")):
            from groundling.judges.preferences import parquet

            return cls(folder, "parquet", *parquet.read(folder))
        if not any((folder / "data").glob("*.npy")):
            raise ConfigError(
                f"{folder} holds no preference pairs: expected {folder / 'data'}/message.npy or *.parquet"
            )
        return cls(folder, "motif", _load_all(folder / "data"), _load_all(folder / "info"))

    @classmethod
    def create(
        cls, folder: str | Path, data: Arrays, info: Arrays | None = None, format: Format = "motif"
    ) -> Self:
        """Write a new dataset; the folder is there as a whole or not at all.

        Args:
            folder: Where; must not exist, or be empty.
            data: By key, arrays (N, 2, L, ...); "message" must be among them. Memory-mapped ones are copied in pieces.
            info: By key, arrays (N, 2).
            format: "motif" or "parquet".

        Raises:
            ConfigError: the folder holds something, the arrays do not fit together, or there is no such format.
        """
        folder, info = Path(folder), info or {}
        if format not in FORMATS:
            raise ConfigError(unknown("format of preference pairs", format, FORMATS))
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} holds something already: name a new folder for the dataset")
        check(data, info, str(folder))
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if format == "parquet":
            from groundling.judges.preferences import parquet

            parquet.write(partial, data, info)
        else:
            for part, arrays in (("data", data), ("info", info)):
                (partial / part).mkdir()
                for key, array in arrays.items():
                    np.save(partial / part / f"{key}.npy", array, allow_pickle=False)
        partial.replace(folder)
        return cls.open(folder)

    def convert(self, folder: str | Path, format: Format) -> "Pairs":
        """Write the same pairs and preferences into a new ``folder``; arguments and errors as of `create`.

        How the preferences were made comes along, and so do the answers that lie in the dataset's folder, so that
        `groundling annotate` goes on there with what is missing.
        """
        new = Pairs.create(folder, self.data, self.info, format)
        if (self.folder / ANSWERS).is_dir():
            shutil.copytree(
                self.folder / ANSWERS, new.folder / ANSWERS, ignore=shutil.ignore_patterns("claims")
            )
        for name in self.annotators():
            account = self.read_account(name)
            if account:
                new.write_account(name, account)
            new.write_preferences(name, self.preferences(name), self.soft_preferences(name))
        return new

    def read_account(self, name: str) -> dict[str, Any]:
        """How the labels of an annotator were made; empty if they came without an account."""
        path = self.folder / "annotations" / f"{name}.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read ({error})") from error
        return content

    def write_account(self, name: str, account: dict[str, Any]) -> None:
        """Write how the labels of an annotator are made, as JSON holds it."""
        path = self.folder / "annotations" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(account, indent=1, ensure_ascii=False) + "\n"
        replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def length(self) -> int:
        """L, the steps of a segment."""
        return int(self.messages.shape[2])

    @property
    def messages(self) -> NDArray[np.uint8]:
        """uint8 (N, 2, L, 256), NUL-padded."""
        return self.data["message"]

    @property
    def blstats(self) -> NDArray[np.integer] | None:
        """(N, 2, L, 27), or None."""
        return self.data.get("blstats")

    def captions(self, blstats: bool = False) -> list[tuple[str, str]]:
        """The two texts of each pair: see `groundling.judges.preferences.captions.caption`.

        Args:
            blstats: Tell the state after each segment, too.

        Raises:
            ConfigError: the state is wanted, and the dataset has none.
        """
        if blstats and self.blstats is None:
            raise ConfigError(f"{self.folder} has no blstats: annotate it by its messages alone")
        known: dict[bytes, str] = {}  # segments repeat: telling each once is several times faster
        all_messages = np.asarray(self.messages)  # indexing a memory map itself is slow
        all_states = np.asarray(self.blstats) if blstats else None

        def tell(pair: int, place: int) -> str:
            messages = all_messages[pair, place]
            state = None if all_states is None else all_states[pair, place, -1:]
            content = messages.tobytes() + (b"" if state is None else state.tobytes())
            if content not in known:
                known[content] = caption(messages, state)
            return known[content]

        return [(tell(pair, 0), tell(pair, 1)) for pair in range(len(self))]

    # Annotations

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
            from groundling.judges.preferences import parquet

            labels = parquet.read_preferences(self.folder, name)[0]
        else:
            labels = _load(self.folder / "preference" / f"{name}.npy")
        _check_labels(labels, len(self), f"{self.folder}: preference {name}")
        return labels

    def soft_preferences(self, name: str) -> NDArray[np.float32] | None:
        """float32 (N, 3): the probabilities of first, second and tie, NaN where there are none; None if there are none
        at all.

        Raises:
            ConfigError: their file does not fit.
        """
        if self.format == "parquet":
            from groundling.judges.preferences import parquet

            soft = parquet.read_preferences(self.folder, name)[1]
        else:
            path = self.folder / "soft_preference" / f"{name}.npy"
            soft = _load(path) if path.exists() else None
        if soft is not None:
            _check_soft(soft, len(self), f"{self.folder}: soft preference {name}")
        return soft

    def write_preferences(
        self, name: str, labels: NDArray[np.integer], soft: NDArray[np.floating] | None = None
    ) -> None:
        """Write what the annotator ``name`` said, in place of what it had said before.

        Args:
            name: Letters, digits, ``-`` and ``_``.
            labels: (N,), codes of `Preference`.
            soft: (N, 3), probabilities of first, second and tie; NaN where there are none.

        Raises:
            ConfigError: the name or the arrays do not fit.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"annotator's name {name!r}: use letters, digits, - and _")
        _check_labels(labels, len(self), f"labels of {name}")
        codes = labels.astype(np.int8)
        if soft is not None:
            soft = np.asarray(soft, dtype=np.float32)
            _check_soft(soft, len(self), f"soft labels of {name}")
        if self.format == "parquet":
            from groundling.judges.preferences import parquet

            parquet.write_preferences(self.folder, name, codes, soft)
            return
        if soft is not None:
            _save(self.folder / "soft_preference" / f"{name}.npy", soft)
        else:  # those of an earlier call would not be about these labels
            (self.folder / "soft_preference" / f"{name}.npy").unlink(missing_ok=True)
        _save(self.folder / "preference" / f"{name}.npy", codes)


def check(data: Arrays, info: Arrays, where: str) -> None:
    """Raise `ConfigError` if the arrays of a dataset do not fit together; ``where`` begins the message."""
    if "message" not in data:
        raise ConfigError(f"{where}: no message among the data ({', '.join(sorted(data)) or 'none'})")
    messages = data["message"]
    if messages.dtype != np.uint8 or messages.ndim != 4 or messages.shape[1::2] != (2, 256):
        raise ConfigError(
            f"{where}: message is {messages.dtype} {messages.shape}, expected uint8 (N, 2, L, 256)"
        )
    head = messages.shape[:3]
    for key, array in data.items():
        expected = head + TAILS.get(key, array.shape[3:])
        if array.shape != expected:
            raise ConfigError(f"{where}: {key} has shape {array.shape}, expected {expected} as of message")
    for key, array in info.items():
        if array.shape != head[:2]:
            raise ConfigError(f"{where}: info {key} has shape {array.shape}, expected {head[:2]}")
    for key, array in {**data, **info}.items():
        if array.dtype.kind not in "iuf":
            raise ConfigError(f"{where}: {key} has dtype {array.dtype}, expected numbers")


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


def _load_all(folder: Path) -> dict[str, NDArray]:
    # The original's key is the file's name up to its first dot.
    return {path.name.partition(".")[0]: _load(path) for path in sorted(folder.glob("*.npy"))}


def _load(path: Path) -> NDArray:
    try:
        array: NDArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ConfigError(f"{path} is no array that can be read ({error})") from error
    return array


def _save(path: Path, array: NDArray) -> None:
    """Write beside and rename; several processes may write at once, the last one stays."""
    path.parent.mkdir(exist_ok=True)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:  # given a path, numpy would append .npy to it
            np.save(file, array, allow_pickle=False)

    replace_file(path, write)
