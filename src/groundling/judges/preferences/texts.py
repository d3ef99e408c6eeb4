"""Pairs of segments of text worlds and of writing: captions are texts, and segments may differ in length."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from groundling.errors import ConfigError, unknown
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import new_folder, write_atomically
from groundling.judges.preferences import parquet
from groundling.judges.preferences.captions import join_captions
from groundling.judges.preferences.pairs import DESCRIPTION, Comparison, Pairs
from groundling.judges.preferences.segments import TextSegment

_AFTERWARDS = "After that:"
TextSegments = tuple[TextSegment, TextSegment]
_TEXTS = TypeAdapter(list[TextSegments])


class TextPairs(Pairs):
    """N pairs of segments in Parquet, with the world, the players and their settings (``about``)."""

    def __init__(
        self, folder: Path, texts: Sequence[TextSegments], info: Mapping[str, NDArray], about: dict[str, Any]
    ) -> None:
        super().__init__(folder, "parquet", len(texts), info)
        self.texts, self.about = texts, about
        self.world = str(about["world"])

    @classmethod
    def of_columns(cls, folder: Path, data: Mapping[str, Any], info: Mapping[str, NDArray]) -> Self:
        """Make the dataset that `parquet.read` has read."""
        path = folder / DESCRIPTION
        try:
            about = read_object(path, SETTINGS)
            about["world"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{path} does not say of which world the pairs are ({error!r}): expected {{"world": "text", …}}'
            ) from error
        for key in TextSegment._fields:
            if key not in data:
                raise ConfigError(f"{folder}: columns first_{key} and second_{key} are missing")
        columns = [data[key] for key in TextSegment._fields]
        pairs = [tuple(zip(*row, strict=True)) for row in zip(*columns, strict=True)]
        try:
            return cls(folder, _TEXTS.validate_python(pairs), info, about)
        except ValidationError as error:
            wrong = error.errors()[0]["input"]
            raise ConfigError(f"{folder}: {wrong!r:.80}: expected texts, and at least one caption") from error

    @classmethod
    def create(
        cls, folder: Path, texts: Sequence[TextSegments], info: Mapping[str, NDArray], about: Mapping[str, Any]
    ) -> Self:
        """Write a new dataset into a missing or empty folder, completely or not at all; ``about`` names the world."""
        data: dict[str, parquet.Column] = {
            key: [(first[place], second[place]) for first, second in texts]
            for place, key in enumerate(TextSegment._fields)
        }
        with new_folder(folder) as partial:
            parquet.write(partial, data, info)
            write_atomically(partial / DESCRIPTION, json.dumps(dict(about), indent=1) + "\n")
        return cls.of_columns(folder, *parquet.read(folder))

    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        if blstats:
            raise ConfigError(f"{self.folder} has no blstats, which NetHack alone has: leave --blstats out")
        return [_compare(*pair) for pair in self.texts]

    def segments(self) -> list[tuple[list[str], list[str]]]:
        """Return the captions, each with its context, because a reward model reads it alone."""

        def read(segment: TextSegment) -> list[str]:
            return [in_context(segment.context, caption) for caption in segment.captions]

        return [(read(first), read(second)) for first, second in self.texts]

    def returns(self) -> NDArray:
        if "return" not in self.info:
            raise ConfigError(f"{self.folder}: {unknown('info', 'return', self.info)}")
        return self.info["return"]


def in_context(context: str, caption: str) -> str:
    return f"{context}\n{caption}" if context else caption


def _compare(first: TextSegment, second: TextSegment) -> Comparison:
    """Show a common context once, different ones at the head of each segment."""
    if first.context == second.context:
        return Comparison(_text_of(first), _text_of(second), first.context)
    return Comparison(*(in_context(one.context, _text_of(one)) for one in (first, second)))


def _text_of(segment: TextSegment) -> str:
    text = join_captions(segment.captions)
    return f"{text}\n{_AFTERWARDS}\n{segment.outcome}" if segment.outcome else text
