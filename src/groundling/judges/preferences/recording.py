"""A dataset of texts while it is recorded: round by round, so that a killed recording goes on after the last one."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.errors import ConfigError
from groundling.io.documents import SETTINGS, read_lines, read_object
from groundling.io.files import write_atomically
from groundling.io.redaction import shareable
from groundling.judges.preferences.pairs import DESCRIPTION
from groundling.judges.preferences.segments import TextSegment
from groundling.judges.preferences.texts import TextPairs


@dataclass(frozen=True)
class Recorded:
    """A segment and its figures, the same ones for every segment of a dataset."""

    segment: TextSegment
    figures: Mapping[str, float]


class TextRecording:
    """Segments in files, one for each round, in ``FOLDER.recording``; at the end they become the dataset.

    Args:
        folder: The dataset's; must not exist, be empty, or be what an equal recording has written.
        description: Which world, and who plays there how; a round that is played again must give the same.
        num_pairs: How many pairs of segments there are to be.

    Raises:
        ConfigError: the folder holds something else.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any], num_pairs: int) -> None:
        self.folder, self.num_pairs = folder, num_pairs
        self.description: dict[str, Any] = shareable({**description, "num_pairs": num_pairs})
        self._partial = folder.with_name(folder.name + ".recording")
        self.is_written = folder.is_dir() and any(folder.iterdir())
        """Whether the dataset is there."""
        if self.is_written:
            check_same(folder, self.description)
            shutil.rmtree(self._partial, ignore_errors=True)
            return
        if (self._partial / DESCRIPTION).exists():
            check_same(self._partial, self.description)
        paths = sorted(self._partial.glob("*.jsonl"))
        self.rounds = len(paths)
        """How many are done."""
        self.segments = [one for path in paths for one in _read(path)]
        """What all rounds so far have given."""

    @property
    def missing(self) -> int:
        """How many segments are still wanted."""
        return max(0, 2 * self.num_pairs - len(self.segments))

    def add(self, segments: Sequence[Recorded]) -> None:
        """Keep what another round has given."""
        if not (self._partial / DESCRIPTION).exists():  # not before anything is recorded
            self._partial.mkdir(parents=True, exist_ok=True)
            write_atomically(self._partial / DESCRIPTION, json.dumps(self.description, indent=1) + "\n")
        lines = [json.dumps([*one.segment, dict(one.figures)]) + "\n" for one in segments]
        write_atomically(self._partial / f"{self.rounds:06}.jsonl", "".join(lines))
        self.segments += segments
        self.rounds += 1

    def write(self, order: Sequence[int]) -> TextPairs:
        """Write the dataset, and forget the rounds.

        Args:
            order: The places of the segments that are taken, two for each pair.
        """
        taken = [self.segments[place] for place in order]
        firsts, seconds = taken[::2], taken[1::2]
        texts = [(one.segment, other.segment) for one, other in zip(firsts, seconds, strict=True)]
        info = {
            key: np.array([[one.figures[key], other.figures[key]] for one, other in zip(firsts, seconds, strict=True)])
            for key in taken[0].figures
            if all(key in one.figures for one in taken)
        }
        pairs = TextPairs.create(self.folder, texts, info, self.description)
        shutil.rmtree(self._partial)
        return pairs


def check_same(folder: Path, description: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a folder's recording is of this description."""
    try:
        there = shareable(read_object(folder / DESCRIPTION, SETTINGS))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds something else: name a new folder for the dataset") from error
    wanted = json.loads(json.dumps(dict(description)))
    different = [
        f"{k}={there.get(k)!r} (now {v!r})"
        for k, v in wanted.items()
        # A recording from before an option was told was made without it.
        if there.get(k) != v and (k in there or v)
    ]
    if different:
        raise ConfigError(
            f"{folder} holds a recording with {', '.join(different)}: name a new folder, or give the same options"
        )


def _segment(row: Any) -> Recorded:
    """A line of a round.

    Raises:
        ValueError, TypeError, IndexError: it is none.
    """
    if not isinstance(row, list):
        raise TypeError(f"{row!r:.80}: expected a list")
    segment, figures = TextSegment(*row[:-1]), dict(row[-1])
    captions = segment.captions
    if not isinstance(captions, list) or not captions:
        raise ValueError(f"captions {captions!r:.80}: expected a list, one at least")
    if not all(isinstance(text, str) for text in (segment.context, segment.outcome, *captions)):
        raise ValueError(f"{segment!r:.80}: expected texts")
    if not all(type(figure) in (int, float) for figure in figures.values()):
        raise ValueError(f"{figures!r:.80}: expected numbers")
    return Recorded(segment, figures)


def _read(path: Path) -> list[Recorded]:
    try:
        return [_segment(row) for _, row in read_lines(path)]
    except (TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{path} is no round of a recording ({error}): delete {path.parent} to record anew"
        ) from error
