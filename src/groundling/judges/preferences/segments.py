"""Segments as reward models read them: distinct captions, and which of them each segment holds."""

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
    """A segment of a world in words."""

    context: str
    """What stands before its captions: an agent's goal, the prompt of a text; may be empty."""
    captions: list[str]
    """One a step, at least one: what was seen and done, or the text."""
    outcome: str = ""
    """What came of the last step: a judge reads it, a reward model does not."""


@dataclass(frozen=True)
class Segments:
    """N pairs of segments of up to L captions each.

    Captions repeat: a million of NetHack's messages in random play are some thousand distinct ones.
    """

    captions: list[str]
    """The distinct ones, the shortest first."""
    indices: NDArray[np.int64]
    """(N, 2, L): which of ``captions``; -1 past the end of a shorter segment."""

    @classmethod
    def of_texts(cls, pairs: Sequence[Sequence[Sequence[str]]]) -> Self:
        """From N pairs of two segments, each at least one caption."""
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
    def of_messages(cls, messages: NDArray[np.uint8], rows: NDArray[np.integer] | None = None) -> Self:
        """From NetHack's messages.

        Args:
            messages: Uint8 (N, 2, L, 256), maybe memory-mapped; each message is a caption.
            rows: Which pairs are read; by default all.
        """
        rows = np.arange(len(messages)) if rows is None else rows
        ids = np.empty((len(rows), *messages.shape[1:3]), dtype=np.int64)
        known: dict[int, str] = {}
        for start in range(0, len(rows), _ROWS_READ):
            chunk = messages[rows[start : start + _ROWS_READ]]  # (n, 2, L, 256)
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
    """Name a caption by its content: a signed 64-bit int, the same in every process and on every machine.

    Two of a million different captions have the same id with a probability of 3e-8.
    """
    digest = hashlib.blake2b(caption.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def caption_ids(captions: Iterable[str]) -> NDArray[np.int64]:
    """int64 (n,): see `caption_id`."""
    return np.fromiter(map(caption_id, captions), np.int64)


def message_ids(messages: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The ids of NetHack's messages by their bytes without the padding; of ASCII they are those of the captions.

    Args:
        messages: Uint8 (..., 256), NUL-padded.

    Returns:
        Int64 (...).
    """
    width = messages.shape[-1]
    flat = np.ascontiguousarray(messages).reshape(-1, width)
    contents = flat.view(f"S{width}")[:, 0].tolist()  # without the NULs at their ends
    ids = (int.from_bytes(hashlib.blake2b(c, digest_size=8).digest(), "little", signed=True) for c in contents)
    return np.fromiter(ids, np.int64, len(contents)).reshape(messages.shape[:-1])
