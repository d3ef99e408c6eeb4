"""The annotators of Motif that read no caption: by game score, by return, at random."""

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.judges.asking.judge import FigureJudge, judges
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.pairs import Pairs
from groundling.registry import unknown


@judges.register("score")
class ScoreJudge(FigureJudge):
    """Prefers the segment whose episode had the higher game score at that point; equal ones are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        if "score" not in pairs.info:
            raise ConfigError(f"{pairs.folder}: {unknown('info', 'score', pairs.info)}")
        return _greater(pairs.info["score"], "score")


@judges.register("return")
class ReturnJudge(FigureJudge):
    """Prefers the segment with the higher sum of rewards; equal ones are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return _greater(pairs.returns(), "return")


@judges.register("random")
class RandomJudge(FigureJudge):
    """Prefers one of the two by a fair coin; never a tie.

    Args:
        seed: Of the coin.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return np.random.default_rng(self.seed).integers(0, 2, len(pairs)).astype(np.int8)


def _greater(figures: NDArray, name: str) -> NDArray[np.int8]:
    """int8 (N,): which of the figures (N, 2) called ``name`` is greater.

    Raises:
        ConfigError: a figure is NaN, which compares as equal to all.
    """
    if (missing := np.isnan(figures).any(axis=1)).any():
        raise ConfigError(
            f"the {name} of {missing.sum()} of {len(figures)} pairs is NaN, the first of them pair {missing.argmax()}: "
            "record them again, or choose another --judge"
        )
    first, second = figures[:, 0], figures[:, 1]
    labels = np.where(first > second, Preference.FIRST, np.where(second > first, Preference.SECOND, Preference.TIE))
    return labels.astype(np.int8)
