"""Record text segments in rounds, so that an interrupted recording resumes after its last round."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from groundling.errors import ConfigError, unknown
from groundling.io.documents import SETTINGS, read_lines, read_object
from groundling.io.files import new_folder, write_atomically
from groundling.io.redaction import shareable
from groundling.judges.preferences import parquet
from groundling.judges.preferences.pairs import DESCRIPTION, Comparison, Pairs, TextSegment, join_captions

_AFTERWARDS = "After that:"
TextSegments = tuple[TextSegment, TextSegment]
_TEXTS = TypeAdapter(list[TextSegments])


class TextPairs(Pairs):
    """N pairs of segments in Parquet files; ``about`` contains the world, the players and their settings."""

    def __init__(
        self, folder: Path, texts: Sequence[TextSegments], info: Mapping[str, NDArray], about: dict[str, Any]
    ) -> None:
        super().__init__(folder, "parquet", len(texts), info)
        self.texts, self.about = texts, about
        self.world = str(about["world"])

    @classmethod
    def of_columns(cls, folder: Path, data: Mapping[str, Any], info: Mapping[str, NDArray]) -> Self:
        """Create the dataset from the result of `parquet.read`."""
        path = folder / DESCRIPTION
        try:
            about = read_object(path, SETTINGS)
            about["world"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f'{path} does not specify the world of the pairs ({error!r}): expected {{"world": "text", …}}'
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
            raise ConfigError(f"{folder} contains {wrong!r:.80}, expected strings and at least one caption") from error

    @classmethod
    def create(
        cls, folder: Path, texts: Sequence[TextSegments], info: Mapping[str, NDArray], about: Mapping[str, Any]
    ) -> Self:
        """Atomically write a dataset into a new or empty folder; ``about`` must contain the world."""
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
            raise ConfigError(f"{self.folder} has no blstats, which only NetHack provides: remove --blstats")
        return [_compare(*pair) for pair in self.texts]

    def segments(self) -> list[tuple[list[str], list[str]]]:
        """Return the captions, each with its context, because a reward model reads each one separately."""

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
    """Return a comparison that shows a shared context once, and different contexts before their segments."""
    if first.context == second.context:
        return Comparison(_text_of(first), _text_of(second), first.context)
    return Comparison(*(in_context(one.context, _text_of(one)) for one in (first, second)))


def _text_of(segment: TextSegment) -> str:
    text = join_captions(segment.captions)
    return f"{text}\n{_AFTERWARDS}\n{segment.outcome}" if segment.outcome else text


_ROW = TypeAdapter(tuple[str, Annotated[list[str], MinLen(1)], str, dict[str, int | float]])  # a `Recorded` as JSON


@dataclass(frozen=True)
class Recorded:
    """A segment and its recorded values, which have the same names throughout a dataset."""

    segment: TextSegment
    figures: Mapping[str, float]


class TextRecording:
    """Stores segments in one file per round in ``FOLDER.recording``, and finally as a dataset in ``folder``.

    ``folder`` must be new, empty, or the result of an identical recording. Identical descriptions (the world, the
    players and their settings) must produce identical rounds.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any], num_pairs: int) -> None:
        self.folder, self.num_pairs = folder, num_pairs
        self.description: dict[str, Any] = shareable({**description, "num_pairs": num_pairs})
        self._partial = folder.with_name(folder.name + ".recording")
        self.is_written = folder.is_dir() and any(folder.iterdir())  # the dataset is complete
        if self.is_written:
            check_same(folder, self.description)
            shutil.rmtree(self._partial, ignore_errors=True)
            return
        if (self._partial / DESCRIPTION).exists():
            check_same(self._partial, self.description)
        paths = sorted(self._partial.glob("*.jsonl"))
        self.rounds = len(paths)
        self.segments = [one for path in paths for one in _read(path)]

    @property
    def missing(self) -> int:
        """Number of segments still to be recorded."""
        return max(0, 2 * self.num_pairs - len(self.segments))

    def add(self, segments: Sequence[Recorded]) -> None:
        if not (self._partial / DESCRIPTION).exists():  # created only when the first segments are recorded
            self._partial.mkdir(parents=True, exist_ok=True)
            write_atomically(self._partial / DESCRIPTION, json.dumps(self.description, indent=1) + "\n")
        lines = [json.dumps([*one.segment, dict(one.figures)]) + "\n" for one in segments]
        write_atomically(self._partial / f"{self.rounds:06}.jsonl", "".join(lines))
        self.segments += segments
        self.rounds += 1

    def write(self, order: Sequence[int]) -> TextPairs:
        """Write the dataset and delete the rounds; ``order`` lists the indices of each pair's two segments."""
        taken = [self.segments[place] for place in order]
        pairs = list(zip(taken[::2], taken[1::2], strict=True))
        info = {
            key: np.array([[one.figures[key] for one in pair] for pair in pairs])
            for key in taken[0].figures
            if all(key in one.figures for one in taken)
        }
        texts = [(one.segment, other.segment) for one, other in pairs]
        written = TextPairs.create(self.folder, texts, info, self.description)
        shutil.rmtree(self._partial)
        return written


def check_same(folder: Path, description: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the recording in a folder has this description."""
    try:
        there = shareable(read_object(folder / DESCRIPTION, SETTINGS))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not a recording: choose a new folder for the dataset") from error
    wanted = json.loads(json.dumps(dict(description)))
    different = [
        f"{key}={there.get(key)!r} (now {value!r})"
        for key, value in wanted.items()
        # An option that is missing from an older recording was off.
        if there.get(key) != value and (key in there or value)
    ]
    if different:
        raise ConfigError(
            f"{folder} contains a recording with {', '.join(different)}: choose a new folder or use the same options"
        )


def _read(path: Path) -> list[Recorded]:
    try:
        rows = [_ROW.validate_python(row) for _, row in read_lines(path)]
    except ValueError as error:
        raise ConfigError(
            f"{path} is not a recorded round ({error}): delete {path.parent} to start the recording again"
        ) from error
    return [Recorded(TextSegment(context, captions, outcome), figures) for context, captions, outcome, figures in rows]
