"""Captions: what a segment looks like to a judge."""

from collections.abc import Iterable
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

_HP, _MAX_HP, _DEPTH, _GOLD, _LEVEL, _HUNGER = 10, 11, 12, 13, 18, 21
"""Where NLE's ``blstats`` holds them."""
_HUNGER_WORDS = ("satiated", "not hungry", "hungry", "weak", "fainting", "fainted", "starved")


def caption(messages: NDArray[np.uint8], blstats: NDArray[np.integer] | None = None) -> str:
    """The text that tells a segment of NetHack: its messages (see `tell`), and its state if that is given.

    Args:
        messages: Uint8 (L, 256), NUL-padded; each byte is one character (Latin-1).
        blstats: (L, 27); then a last line tells the state after the segment's last step.

    Returns:
        Lines joined by a newline, none at the end; empty if there was no message and no ``blstats``.
    """
    lines = _collapsed(map(decode, messages))
    if blstats is not None:
        lines.append(_status(blstats[-1]))
    return "\n".join(lines)


def tell(captions: Iterable[str]) -> str:
    """The text that tells a segment of any world.

    Consecutive equal captions become one, ``caption (xN)``; empty ones are dropped after that, so that what stands on
    both sides of an empty one is told twice.

    Returns:
        Captions joined by a newline, none at the end; empty if all were empty.
    """
    return "\n".join(_collapsed(captions))


def _collapsed(captions: Iterable[str]) -> list[str]:
    counted = ((caption, len(list(same))) for caption, same in groupby(captions))
    return [caption if count == 1 else f"{caption} (x{count})" for caption, count in counted if caption]


def decode(message: NDArray[np.uint8]) -> str:
    """The text of one message, uint8 (256,), up to its first NUL."""
    return message.tobytes().partition(b"\0")[0].decode("latin-1")


def _status(blstats: NDArray[np.integer]) -> str:
    hunger = int(blstats[_HUNGER])
    word = _HUNGER_WORDS[hunger] if 0 <= hunger < len(_HUNGER_WORDS) else "not hungry"
    return (
        f"Status: depth {blstats[_DEPTH]}, gold {blstats[_GOLD]}, HP {blstats[_HP]} of {blstats[_MAX_HP]}, "
        f"experience level {blstats[_LEVEL]}, {word}"
    )
