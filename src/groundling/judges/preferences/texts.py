"""Pairs of segments of a world in words: captions are texts, and segments may differ in length."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import new_folder, write_atomically
from groundling.judges.preferences import parquet
from groundling.judges.preferences.captions import tell
from groundling.judges.preferences.pairs import DESCRIPTION, Comparison, Pairs
from groundling.judges.preferences.segments import Segments, TextSegment
from groundling.registry import unknown

_AFTERWARDS = "After that:"
TextSegments = tuple[TextSegment, TextSegment]


class TextPairs(Pairs):
    """N pairs of segments in Parquet; each segment has a context, told once, and captions, one a step.

    Attributes:
        texts: The pairs.
        about: Which world, and who played there how, as JSON holds it.
    """

    def __init__(
        self, folder: Path, texts: Sequence[TextSegments], info: Mapping[str, NDArray], about: dict[str, Any]
    ) -> None:
        super().__init__(folder, "parquet", len(texts), info)
        self.texts, self.about = texts, about
        self.world = str(about["world"])

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a dataset.

        Raises:
            ConfigError: its files cannot be read, or do not say of which world they are.
        """
        path = folder / DESCRIPTION
        try:
            about = read_object(path, SETTINGS)
            about["world"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{path} does not say of which world the pairs are ({error!r}): expected {{"world": "text", …}}'
            ) from error
        return cls(folder, *parquet.read_texts(folder), about)

    @classmethod
    def create(
        cls, folder: Path, texts: Sequence[TextSegments], info: Mapping[str, NDArray], about: Mapping[str, Any]
    ) -> Self:
        """Write a new dataset; the folder is there as a whole or not at all.

        Args:
            folder: Where; must not exist, or be empty.
            texts: The pairs.
            info: By key, arrays (N, 2); ``return`` is the sum of a segment's rewards.
            about: Must name the ``world``.

        Raises:
            ConfigError: the folder holds something, or pyarrow is not installed.
        """
        with new_folder(folder) as partial:
            parquet.write_texts(partial, texts, info)
            write_atomically(partial / DESCRIPTION, json.dumps(dict(about), indent=1) + "\n")
        return cls.open(folder)

    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        """A context that both segments have in common is told once, another at the head of its segment."""
        if blstats:
            raise ConfigError(f"{self.folder} has no blstats, which NetHack alone has: leave --blstats out")
        return [_compare(*pair) for pair in self.texts]

    def segments(self) -> Segments:
        """Each caption with its context before it: it is read alone."""
        return Segments.of_texts(
            [[[in_context(one.context, text) for text in one.captions] for one in pair] for pair in self.texts]
        )

    def returns(self) -> NDArray:
        if "return" not in self.info:
            raise ConfigError(f"{self.folder}: {unknown('info', 'return', self.info)}")
        return self.info["return"]


def in_context(context: str, caption: str) -> str:
    """A caption that is read alone: what stands before it, then itself."""
    return f"{context}\n{caption}" if context else caption


def _compare(first: TextSegment, second: TextSegment) -> Comparison:
    if first.context == second.context:
        return Comparison(_segment_text(first), _segment_text(second), first.context)
    return Comparison(*(in_context(one.context, _segment_text(one)) for one in (first, second)))


def _segment_text(segment: TextSegment) -> str:
    text = tell(segment.captions)
    return f"{text}\n{_AFTERWARDS}\n{segment.outcome}" if segment.outcome else text
