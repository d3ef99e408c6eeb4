"""Segments as reward models read them: distinct captions, and their places in each segment."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from groundling.judges.preferences.captions import decode

_ROWS_READ = 16_384
"""Pairs whose messages are read at once from a memory-mapped file."""


class TextSegment(NamedTuple):
    """A segment of a text world or of writing."""

    context: str
    """An agent's goal or a text's prompt; may be empty."""
    captions: list[str]
    """At least one: the observation and action of each step, or the text."""
    outcome: str = ""
    """The observation after the last step, which a judge reads and a reward model does not."""


@dataclass(frozen=True)
class Segments:
    """N pairs of segments of up to L captions; a million messages of random play have some thousand distinct ones."""

    captions: list[str]
    """The distinct ones, the shortest first."""
    indices: NDArray[np.int64]
    """``(N, 2, L)`` into ``captions``; -1 past the end of a segment."""

    @classmethod
    def of_texts(cls, pairs: Sequence[Sequence[Sequence[str]]]) -> Self:
        """Make N pairs of two segments, each a sequence of at least one caption."""
        longest = max((len(segment) for pair in pairs for segment in pair), default=1)
        captions = sorted(
            {caption for pair in pairs for segment in pair for caption in segment},
            key=lambda caption: (len(caption), caption_id(caption)),
        )
        places = {caption: place for place, caption in enumerate(captions)}
        indices = np.full((len(pairs), 2, longest), -1, dtype=np.int64)
        for row, pair in enumerate(pairs):
            for side, segment in enumerate(pair):
                indices[row, side, : len(segment)] = [places[caption] for caption in segment]
        return cls(captions, indices)

    @classmethod
    def of_messages(cls, messages: NDArray[np.uint8]) -> Self:
        """Make pairs of NetHack's messages, uint8 ``(N, 2, L, 256)``, possibly memory-mapped."""
        ids = np.empty(messages.shape[:3], dtype=np.int64)
        known: dict[int, str] = {}
        for start in range(0, len(messages), _ROWS_READ):
            chunk = np.asarray(messages[start : start + _ROWS_READ])  # (n, 2, L, 256)
            ids[start : start + _ROWS_READ] = message_ids(chunk)
            new, first = np.unique(ids[start : start + _ROWS_READ], return_index=True)
            flat = chunk.reshape(-1, chunk.shape[-1])
            for id, place in zip(new.tolist(), first.tolist(), strict=True):
                if id not in known:
                    known[id] = decode(flat[place])
        keys, indices = np.unique(ids, return_inverse=True)
        order = sorted(range(len(keys)), key=lambda place: (len(known[int(keys[place])]), keys[place]))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return cls([known[int(keys[place])] for place in order], rank[indices.reshape(ids.shape)])


def caption_id(caption: str) -> int:
    """Return a signed 64-bit hash of a caption, the same in every process and on every machine.

    The probability that two of a million captions collide is 3e-8.
    """
    return _hash(caption.encode("utf-8", "surrogatepass"))


def caption_ids(captions: Iterable[str]) -> NDArray[np.int64]:
    """Return `caption_id` of each caption, int64 ``(n,)``."""
    return np.fromiter(map(caption_id, captions), np.int64)


def message_ids(messages: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Hash NetHack's messages, uint8 ``(..., 256)``, by their bytes without padding; int64 ``(...)``.

    The id of an ASCII message is that of its caption.
    """
    width = messages.shape[-1]
    flat = np.ascontiguousarray(messages).reshape(-1, width)
    contents = flat.view(f"S{width}")[:, 0].tolist()  # without the NULs at their ends
    return np.fromiter(map(_hash, contents), np.int64, len(contents)).reshape(messages.shape[:-1])


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
