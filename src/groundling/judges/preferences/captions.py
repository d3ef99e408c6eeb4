"""Captions: segments as text for a judge."""

from collections.abc import Iterable
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

_HP, _MAX_HP, _DEPTH, _GOLD, _LEVEL, _HUNGER = 10, 11, 12, 13, 18, 21  # indices into NLE's blstats
_HUNGER_WORDS = ("satiated", "not hungry", "hungry", "weak", "fainting", "fainted", "starved")


def caption(messages: NDArray[np.uint8], blstats: NDArray[np.integer] | None = None) -> str:
    """Caption a segment of NetHack: messages, uint8 ``(L, 256)``, and the last of the states ``(L, 27)``, if given."""
    lines = [joined] if (joined := join_captions(map(decode, messages))) else []
    return "\n".join([*lines, *([] if blstats is None else [_status(blstats[-1])])])


def join_captions(captions: Iterable[str]) -> str:
    """Join captions by newlines; equal ones in a row become ``caption (xN)``.

    Empty captions are dropped after that, so equal captions on both sides of an empty one stay two.
    """
    counted = ((caption, len(list(same))) for caption, same in groupby(captions))
    return "\n".join(text if count == 1 else f"{text} (x{count})" for text, count in counted if text)


def decode(message: NDArray[np.uint8]) -> str:
    """Return the text of a message, uint8 ``(256,)``, up to its first NUL."""
    return message.tobytes().partition(b"\0")[0].decode("latin-1")


def decode_pairs(messages: NDArray[np.uint8]) -> list[tuple[list[str], list[str]]]:
    """Return uint8 ``(N, 2, L, 256)`` as pairs of L texts; Latin-1 keeps every byte, only padding is removed."""
    rows = np.ascontiguousarray(messages).reshape(-1, 256).view("S256")[:, 0].tolist()  # without NULs at their ends
    texts = [row.decode("latin-1") for row in rows]
    length = messages.shape[2]
    segments = [texts[start : start + length] for start in range(0, len(texts), length)]
    return list(zip(segments[::2], segments[1::2], strict=True))


def _status(blstats: NDArray[np.integer]) -> str:
    hunger = int(blstats[_HUNGER])
    word = _HUNGER_WORDS[hunger] if 0 <= hunger < len(_HUNGER_WORDS) else "not hungry"
    return (
        f"Status: depth {blstats[_DEPTH]}, gold {blstats[_GOLD]}, HP {blstats[_HP]} of {blstats[_MAX_HP]}, "
        f"experience level {blstats[_LEVEL]}, {word}"
    )
