"""Segments of text worlds and of writing, and ids of captions."""

import hashlib
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray


class TextSegment(NamedTuple):
    """A segment of a text world or of writing."""

    context: str  # an agent's goal or a text's prompt; may be empty
    captions: Annotated[list[str], MinLen(1)]  # the observation and action of each step, or the text
    outcome: str = ""  # the observation after the last step, which a judge reads and a reward model does not


def caption_id(caption: str) -> int:
    """Return a signed 64-bit hash, equal on all machines; two of a million captions collide with probability 3e-8."""
    content = caption.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def caption_ids(captions: Iterable[str]) -> NDArray[np.int64]:
    """Return `caption_id` of each caption, int64 ``(n,)``."""
    return np.fromiter(map(caption_id, captions), np.int64)
