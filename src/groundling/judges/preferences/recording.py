"""Text segments while they are recorded: round by round, so a killed recording continues after the last one."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from pydantic import TypeAdapter

from groundling.errors import ConfigError
from groundling.io.documents import SETTINGS, read_lines, read_object
from groundling.io.files import write_atomically
from groundling.io.redaction import shareable
from groundling.judges.preferences.pairs import DESCRIPTION
from groundling.judges.preferences.segments import TextSegment
from groundling.judges.preferences.texts import TextPairs

_ROW = TypeAdapter(tuple[str, Annotated[list[str], MinLen(1)], str, dict[str, int | float]])  # `TextSegment`, figures


@dataclass(frozen=True)
class Recorded:
    """A segment and its figures, which have the same names throughout a dataset."""

    segment: TextSegment
    figures: Mapping[str, float]


class TextRecording:
    """A file of segments for each round in ``FOLDER.recording``; at the end they become the dataset in ``folder``.

    ``folder`` must be missing, empty, or the result of an equal recording. Equal descriptions (the world, the players
    and their settings) must give equal rounds.
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
        """Number of segments still to record."""
        return max(0, 2 * self.num_pairs - len(self.segments))

    def add(self, segments: Sequence[Recorded]) -> None:
        if not (self._partial / DESCRIPTION).exists():  # not before anything is recorded
            self._partial.mkdir(parents=True, exist_ok=True)
            write_atomically(self._partial / DESCRIPTION, json.dumps(self.description, indent=1) + "\n")
        lines = [json.dumps([*one.segment, dict(one.figures)]) + "\n" for one in segments]
        write_atomically(self._partial / f"{self.rounds:06}.jsonl", "".join(lines))
        self.segments += segments
        self.rounds += 1

    def write(self, order: Sequence[int]) -> TextPairs:
        """Write the dataset and delete the rounds; ``order`` names two segments for each pair."""
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
    """Raise `ConfigError` unless a folder's recording has this description."""
    try:
        there = shareable(read_object(folder / DESCRIPTION, SETTINGS))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds something else: name a new folder for the dataset") from error
    wanted = json.loads(json.dumps(dict(description)))
    different = [
        f"{k}={there.get(k)!r} (now {v!r})"
        for k, v in wanted.items()
        # A recording without an option, because it is older, was made with the option off.
        if there.get(k) != v and (k in there or v)
    ]
    if different:
        raise ConfigError(
            f"{folder} holds a recording with {', '.join(different)}: name a new folder, or give the same options"
        )


def _read(path: Path) -> list[Recorded]:
    try:
        rows = [_ROW.validate_python(row) for _, row in read_lines(path)]
    except ValueError as error:
        raise ConfigError(
            f"{path} is no round of a recording ({error}): delete {path.parent} to start the recording again"
        ) from error
    return [Recorded(TextSegment(context, captions, outcome), figures) for context, captions, outcome, figures in rows]
