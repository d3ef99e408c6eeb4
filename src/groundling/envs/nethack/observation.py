"""Compact NetHack observations of a few hundred bytes, and the shared-memory arrays that hold them.

Motif's agents see an image of the 12 × 12 characters around the hero (3 × 72 × 72 bytes), 27 numbers, the message,
and its number of occurrences in the episode. Here, the window is stored as characters and colours (288 bytes), and
`groundling.envs.nethack.rendering` draws the image from them.
"""

import hashlib
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Self

import numpy as np

WINDOW = 12  # width and height in characters; the hero is in row 6, column 6 (0-based)
MESSAGE_LENGTH = 256
TERMINAL_SHAPE = (24, 80)
COLOURS = 16
BLANK = ord(" ")  # fills cells beyond the terminal's edge, in colour 0
VECTOR_LIMIT = np.float32(5)  # features are clipped to ± this limit

_TENTH = (1 / 20, 1 / 10)
_SCALES: dict[str, tuple[float, float]] = {
    "x": (1 / 79, 1 / 79),
    "y": (1 / 21, 1 / 21),
    "strength": (1 / 25, 0.0),
    "exact_strength": (1 / 125, 1 / 10),  # nle's alternative encoding of 18/01 to 18/100
    **dict.fromkeys(("dexterity", "constitution", "intelligence", "wisdom", "charisma"), _TENTH),
    "score": (1 / 2000, 0.0),
    **dict.fromkeys(("hit_points", "max_hit_points"), _TENTH),
    "depth": (1 / 10, 0.0),
    "gold": (1 / 500, 1 / 1000),
    **dict.fromkeys(("energy", "max_energy"), _TENTH),
    "armour_class": (1 / 10, 1 / 10),
    "monster_level": (1 / 10, 0.0),
    "experience_level": (1 / 10, 1 / 10),
    "experience_points": (1 / 500, 1 / 100),
    "turns": (1 / 2000, 1 / 1000),
    "hunger": (1 / 2, 1.0),
    "encumbrance": (1 / 2, 1 / 10),
    "dungeon": (1 / 4, 0.0),
    "dungeon_level": (1 / 10, 0.0),
    "condition": (1 / 1024, 0.0),
    "alignment": (1.0, 0.0),
}
"""Scale factors ``(full, motif)`` for nle's 27 blstats, in order. ``full`` keeps early games within ± 1; ``motif`` is
from Motif's code (the paper lists no factors) and omits some blstats, such as score and depth."""
FEATURES = tuple(_SCALES)  # names of the blstats
VECTORS: dict[str, np.ndarray] = {
    name: np.array([scales[place] for scales in _SCALES.values()], dtype=np.float32)
    for place, name in enumerate(("full", "motif"))
}  # float32 ``(27,)``, keyed by the argument ``vector``

_BEFORE = WINDOW // 2
_Slices = tuple[slice, slice]


def window(
    terminal: np.ndarray, row: int, column: int, out: np.ndarray | None = None, fill: int = BLANK
) -> np.ndarray:
    """Cut a `WINDOW` × `WINDOW` window out of a ``(24, 80)`` terminal, with the given cell at ``[6, 6]`` and ``fill``
    beyond the edge. A hero at blstats ``(x, y)`` is in column ``x``, row ``y + 1`` (row 0 is the message).
    """
    if out is None:
        out = np.empty((WINDOW, WINDOW), dtype=np.uint8)
    seen, place = _overlap(row, column, *terminal.shape)
    out[...] = fill
    out[place] = terminal[seen]
    return out


@lru_cache(maxsize=1 << 12)
def _overlap(row: int, column: int, rows: int, columns: int) -> tuple[_Slices, _Slices]:
    """Return the part of a terminal that is in the window around a cell, and its position in the window."""
    top, left = row - _BEFORE, column - _BEFORE
    first, last = max(top, 0), min(top + WINDOW, rows)
    start, stop = max(left, 0), min(left + WINDOW, columns)
    place = slice(first - top, last - top), slice(start - left, stop - left)
    return (slice(first, last), slice(start, stop)), place


def vector_features(blstats: np.ndarray, out: np.ndarray, vector: str = "full") -> None:
    """Write blstats ``(..., 27)``, scaled by `VECTORS` and clipped, to ``out``, float32 of the same shape."""
    np.multiply(blstats, VECTORS[vector], out=out)
    np.maximum(out, -VECTOR_LIMIT, out=out)
    np.minimum(out, VECTOR_LIMIT, out=out)


@dataclass(frozen=True)
class View:
    """The part of nle's arrays that a policy sees, as set by a task's arguments."""

    row_offset: int = 1
    """Terminal row at the window's centre minus the row in blstats: 1, since row 0 is the message. It is 0 with
    ``compat=["crop"]``, which centres the window on the square above the hero."""
    vector: str = "full"  # key of `VECTORS`

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Self:
        return cls(0 if "crop" in args.get("compat", ()) else 1, args.get("vector", "full"))

    def windows(self, seen: Mapping[str, np.ndarray], x: int, y: int, chars: np.ndarray, colours: np.ndarray) -> None:
        """Write the characters and colours around the hero at blstats ``(x, y)``, uint8 ``(12, 12)``."""
        window(seen["tty_chars"], y + self.row_offset, x, chars)
        window(seen["tty_colors"], y + self.row_offset, x, colours, fill=0)


@lru_cache(maxsize=1 << 16)
def message_id(message: bytes) -> int:
    """Hash a message, without its zero padding, to a signed 64-bit int that is the same on all machines."""
    digest = hashlib.blake2b(message.rstrip(b"\0"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def message_text(message: np.ndarray | bytes) -> str:
    """Return a message, uint8 ``(256,)`` padded with zeros, as text for captions."""
    text = message if isinstance(message, bytes) else message.tobytes()
    return text.split(b"\0", 1)[0].decode("latin-1").strip()


class EndStatus(IntEnum):
    """Status of an episode, with nle's values."""

    ABORTED = -1
    RUNNING = 0
    DEATH = 1
    TASK_SUCCESSFUL = 2


FIGURES = ("score", "dlvl", "gold", "xlvl", "turns", "scout", "end_status")  # at an episode's end; see `NetHackTask`

STEP_FIELDS: dict[str, tuple[type, tuple[int, ...]]] = {
    "actions": (np.uint8, ()),
    "chars": (np.uint8, (WINDOW, WINDOW)),
    "colours": (np.uint8, (WINDOW, WINDOW)),
    "vector": (np.float32, (len(FEATURES),)),
    "messages": (np.uint8, (MESSAGE_LENGTH,)),
    "message_ids": (np.int64, ()),
    "counts": (np.float32, ()),
    "rewards": (np.float32, ()),
    "dones": (np.bool_, ()),
    "cut": (np.bool_, ()),
}  # dtype and per-env shape of the arrays that change at every step
LAST_FIELDS = ("chars", "colours", "vector", "messages")  # also stored as ``last_…`` when an episode is truncated
_FIELDS: dict[str, tuple[type, tuple[int, ...]]] = {
    **STEP_FIELDS,
    "next_episode": (np.int64, ()),
    "ended_episode": (np.int64, ()),
    "ended_return": (np.float64, ()),
    "ended_length": (np.int64, ()),
    "ended_figures": (np.int64, (len(FIGURES),)),
    **{f"last_{name}": STEP_FIELDS[name] for name in LAST_FIELDS},
}
_CACHE_LINE = 64  # bytes


class SharedArrays:
    """One array ``(num_envs, ...)`` per field, in memory that child processes map through the file descriptor ``fd``.
    If ``fd`` is None, new memory is allocated. It is freed when the processes end, even if they crash.
    """

    def __init__(self, num_envs: int, fd: int | None = None) -> None:
        offsets, size = {}, 0
        for name, field in _FIELDS.items():
            offsets[name] = size
            size += -(-num_envs * np.dtype(field).itemsize // _CACHE_LINE) * _CACHE_LINE
        if fd is None:
            fd = os.memfd_create("groundling-nethack", 0) if hasattr(os, "memfd_create") else _nameless_file()
            os.ftruncate(fd, size)
        self.fd = fd
        memory = mmap.mmap(fd, size)
        self.arrays = {
            name: np.ndarray((num_envs, *shape), dtype, memory, offsets[name])
            for name, (dtype, shape) in _FIELDS.items()
        }

    def close(self) -> None:
        """Close the descriptor; the arrays stay valid while they are referenced."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _nameless_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
