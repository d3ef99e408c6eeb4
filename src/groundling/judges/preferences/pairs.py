"""What a preference dataset is: pairs of segments of a world, and what annotators said about them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from numpy.typing import NDArray

from groundling.judges.preferences.labels import Format, Labels
from groundling.judges.preferences.segments import Segments

ANSWERS = "answers"
"""In a dataset's folder, where its answers are kept (`groundling.judges.preferences.store`) unless named otherwise."""
DESCRIPTION = "recording.json"
"""Beside the data: which world, and who played there how."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair of segments as a judge reads it."""

    first: str
    second: str
    context: str = ""
    """What both have in common and is told once: the prompt of two texts, the goal of two episodes."""


class Pairs(Labels, ABC):
    """A folder with N pairs of segments of one world, opened by `groundling.judges.open_pairs`.

    Attributes:
        world: Its kind: an id of `groundling.judges.asking.subjects`.
        info: By key, the arrays (N, 2), one figure per segment.
    """

    world: str

    def __init__(self, folder: Path, format: Format, count: int, info: Mapping[str, NDArray]) -> None:
        super().__init__(folder, format, count)
        self.info = info

    def __len__(self) -> int:
        return self.count

    @abstractmethod
    def comparisons(self, blstats: bool = False) -> list[Comparison]:
        """What a judge reads of each pair.

        Args:
            blstats: Tell NetHack's state after each segment, too.

        Raises:
            ConfigError: the state is wanted, and the dataset has none.
        """

    @abstractmethod
    def segments(self) -> Segments:
        """What a reward model reads of each pair."""

    @abstractmethod
    def returns(self) -> NDArray:
        """Float (N, 2): the sum of each segment's rewards.

        Raises:
            ConfigError: the dataset does not tell.
        """
