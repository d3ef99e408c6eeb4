"""NetHack messages as arrays of bytes: their content ids and their texts."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MESSAGE_LENGTH = 256
"""Bytes of a message as NLE gives it, NUL-padded."""


def _odd_numbers(count: int) -> Iterator[int]:
    """The first ``count`` outputs of SplitMix64 (Steele et al. 2014) from 0, made odd."""
    state = 0
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield (z ^ (z >> 31)) | 1


_FACTORS = np.array(list(_odd_numbers(MESSAGE_LENGTH // 8)), dtype=np.uint64)


def message_ids(messages: NDArray[np.uint8]) -> NDArray[np.int64]:
    """A 64-bit id of each message's content, the same on every machine.

    The sum over the message's 8-byte words of SplitMix64's finaliser of word × an odd number of that place. A word of
    NULs adds 0. Not for defence against who makes messages collide on purpose.

    Args:
        messages: uint8 (..., 256).

    Returns:
        int64 (...).
    """
    words = np.ascontiguousarray(messages).view("<u8")  # (..., 32)
    used = np.flatnonzero(words.any(axis=tuple(range(words.ndim - 1))))
    end = int(used[-1]) + 1 if len(used) else 0
    words = words[..., :end] * _FACTORS[:end]
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words.sum(-1, dtype=np.uint64).view(np.int64)


def message_text(message: NDArray[np.uint8]) -> str:
    """The text of one message (256,), up to its first NUL."""
    return message.tobytes().partition(b"\0")[0].decode("latin-1")


def message_bytes(text: str) -> NDArray[np.uint8]:
    """A text as a message (256,); longer ones are cut."""
    message = np.zeros(MESSAGE_LENGTH, dtype=np.uint8)
    content = np.frombuffer(text.encode("latin-1", errors="replace")[: MESSAGE_LENGTH - 1], dtype=np.uint8)
    message[: len(content)] = content
    return message
