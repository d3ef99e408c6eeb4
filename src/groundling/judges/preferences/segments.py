"""Segments as reward models read them: distinct captions, and their places in each segment."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray


class TextSegment(NamedTuple):
    """A segment of a text world or of writing."""

    context: str  # an agent's goal or a text's prompt; may be empty
    captions: Annotated[list[str], MinLen(1)]  # the observation and action of each step, or the text
    outcome: str = ""  # the observation after the last step, which a judge reads and a reward model does not


@dataclass(frozen=True)
class Segments:
    """N pairs of segments of up to L captions; a million messages of random play have some thousand distinct ones."""

    captions: list[str]  # the distinct ones, the shortest first
    indices: NDArray[np.int64]  # (N, 2, L) into captions; -1 past the end of a segment

    @classmethod
    def of_texts(cls, pairs: Sequence[Sequence[Sequence[str]]]) -> Self:
        """Make N pairs of two segments, each a sequence of at least one caption."""
        segments = [segment for pair in pairs for segment in pair]
        every = [caption for segment in segments for caption in segment]
        captions = sorted(set(every), key=lambda caption: (len(caption), caption_id(caption)))
        places = {caption: place for place, caption in enumerate(captions)}
        lengths = np.array([len(segment) for segment in segments], dtype=np.int64).reshape(-1, 2, 1)
        indices = np.full((len(pairs), 2, lengths.max(initial=1)), -1)
        indices[np.arange(indices.shape[2]) < lengths] = [places[caption] for caption in every]
        return cls(captions, indices)


def caption_id(caption: str) -> int:
    """Return a signed 64-bit hash of a caption, the same in every process and on every machine.

    The probability that two of a million captions collide is 3e-8.
    """
    content = caption.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def caption_ids(captions: Iterable[str]) -> NDArray[np.int64]:
    """Return `caption_id` of each caption, int64 ``(n,)``."""
    return np.fromiter(map(caption_id, captions), np.int64)
