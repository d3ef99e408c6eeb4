"""Pairs of NetHack segments, stored as arrays with one entry per step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, unknown
from groundling.io.files import new_folder
from groundling.judges.preferences import npy, parquet
from groundling.judges.preferences.pairs import FORMATS, Comparison, Format, Pairs, caption, decode_pairs

Arrays = Mapping[str, NDArray]
TAILS: dict[str, tuple[int, ...]] = {  # shape after (N, 2, L) by data key; other keys may have any shape
    "message": (256,),
    "blstats": (27,),
    "tty_chars": (24, 80),
    "tty_colors": (24, 80),
    "rewards": (),
}
_USED = ("message", "blstats", "rewards", "score")  # read by judges and reward models; other arrays may be unreadable


class MessagePairs(Pairs):
    """N pairs of NetHack segments; ``data`` maps keys to ``(N, 2, L, ...)`` arrays, memory-mapped in "motif" format."""

    world = "nethack"

    def __init__(self, folder: Path, format: Format, data: Arrays, info: Arrays) -> None:
        _check(data, info, str(folder))
        super().__init__(folder, format, len(data["message"]), info)
        self.data = data

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a memory-mapped dataset in Motif's format, skipping unused arrays of the wrong shape."""
        data, info = npy.read(folder / "data", _USED), npy.read(folder / "info", _USED)
        head = data["message"].shape[:3] if "message" in data else ()
        data = {key: array for key, array in data.items() if key in _USED or not _misfit(key, array, head)}
        info = {key: array for key, array in info.items() if key in _USED or not _misfit(key, array, head[:2])}
        return cls(folder, "motif", data, info)

    @classmethod
    def of_columns(cls, folder: Path, data: Mapping[str, Any], info: Arrays) -> Self:
        """Create the dataset from the result of `parquet.read`."""
        arrays = {key: column for key, column in data.items() if key != "messages"}
        for key, column in arrays.items():
            if not isinstance(column, np.ndarray):
                raise ConfigError(f"{folder}: column {key} contains strings, expected numbers")
        if "messages" in data:
            arrays["message"] = _encode(data["messages"], f"{folder}: column messages")
        return cls(folder, "parquet", arrays, info)

    @classmethod
    def create(cls, folder: str | Path, data: Arrays, info: Arrays | None = None, format: Format = "motif") -> Self:
        """Write a dataset into a new or empty folder; if an error occurs, no partial folder remains.

        Args:
            data: Arrays ``(N, 2, L, ...)`` by key, including "message"; may be memory-mapped.
            info: Arrays ``(N, 2)`` by key, with numbers or, in the "motif" format, strings.
        """
        folder, info = Path(folder), info or {}
        if format not in FORMATS:
            raise ConfigError(unknown("format of preference pairs", format, FORMATS))
        _check(data, info, str(folder))
        with new_folder(folder) as partial:
            if format == "motif":
                npy.write(partial, data, info)
            else:
                columns: dict[str, parquet.Column] = {"messages": decode_pairs(data["message"])}
                columns |= {key: array for key, array in data.items() if key != "message"}
                parquet.write(partial, columns, info)
        return cls.open(folder) if format == "motif" else cls.of_columns(folder, *parquet.read(folder))

    @property
    def messages(self) -> NDArray[np.uint8]:
        """uint8 ``(N, 2, L, 256)``, NUL-padded."""
        return self.data["message"]

    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        if blstats and "blstats" not in self.data:
            raise ConfigError(f"{self.folder} has no blstats: remove --blstats")
        messages = np.asarray(self.messages)  # indexing the memory map directly is slow
        states = np.asarray(self.data["blstats"]) if blstats else None

        def caption_of(*place: int) -> str:
            return caption(messages[place], None if states is None else states[place])

        return [Comparison(caption_of(pair, 0), caption_of(pair, 1)) for pair in range(len(self))]

    def segments(self) -> list[tuple[list[str], list[str]]]:
        return decode_pairs(self.messages)

    def returns(self) -> NDArray:
        if "rewards" not in self.data:
            raise ConfigError(f"{self.folder}: {unknown('data', 'rewards', self.data)}")
        sums: NDArray = self.data["rewards"].sum(axis=2)
        return sums


def _check(data: Arrays, info: Arrays, where: str) -> None:
    if "message" not in data:
        raise ConfigError(f"{where}: no message array in the data (found: {', '.join(sorted(data)) or 'none'})")
    messages = data["message"]
    shape = messages.shape
    if messages.dtype != np.uint8 or messages.ndim != 4 or shape[1::2] != (2, 256) or not shape[2]:
        raise ConfigError(f"{where}: message is {messages.dtype} {shape}, expected uint8 (N, 2, L, 256) with L > 0")
    head = messages.shape[:3]
    for arrays, shape in ((data, head), (info, head[:2])):
        for key, array in arrays.items():
            if (problem := _misfit(key, array, shape)) is not None:
                raise ConfigError(f"{where}: {problem}")


def _misfit(key: str, array: NDArray, head: tuple[int, ...]) -> str | None:
    """Return why an array does not match the leading dimensions ``head`` of a dataset; None if it matches."""
    is_info = len(head) == 2
    name = f"info {key}" if is_info else key
    expected = head if is_info else head + TAILS.get(key, array.shape[3:])
    if array.shape != expected:
        return f"{name} has shape {array.shape}, expected {expected} to match message"
    if array.dtype.kind not in ("iufUS" if is_info and key not in _USED else "iuf"):
        return f"{name} has dtype {array.dtype}, expected numbers"
    return None


def _encode(pairs: Sequence[tuple[list[str], list[str]]], where: str) -> NDArray[np.uint8]:
    """Invert `decode_pairs`."""
    try:
        lines = [[[text.encode("latin-1") for text in segment] for segment in pair] for pair in pairs]
        if not all(isinstance(segment, list) for pair in pairs for segment in pair):
            raise TypeError("texts")
    except (UnicodeEncodeError, AttributeError, TypeError) as error:
        raise ConfigError(f"{where}: expected lists of strings of Latin-1 characters ({error})") from error
    lengths = {len(segment) for pair in lines for segment in pair}
    longest = max((len(line) for pair in lines for segment in pair for line in segment), default=0)
    if len(lengths) > 1 or longest > 256:
        raise ConfigError(
            f"{where}: segments must all have the same number of messages (found {lengths}), and messages may have "
            f"at most 256 bytes (found {longest})"
        )
    return np.array(lines, "S256").view(np.uint8).reshape(len(pairs), 2, *lengths, 256)
