"""Motif's annotators that read no caption: by game score, by return, at random."""

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, unknown
from groundling.judges.asking.judge import FigureJudge, judges
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.pairs import Pairs


@judges.register("score")
class ScoreJudge(FigureJudge):
    """Prefers the segment whose episode had the higher game score at that point; equal scores are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        if "score" not in pairs.info:
            raise ConfigError(f"{pairs.folder}: {unknown('info', 'score', pairs.info)}")
        return _greater(pairs.info["score"], "score")


@judges.register("return")
class ReturnJudge(FigureJudge):
    """Prefers the segment with the higher sum of rewards; equal sums are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return _greater(pairs.returns(), "return")


@judges.register("random")
class RandomJudge(FigureJudge):
    """Prefers one of the two by a fair coin with this ``seed``; never a tie."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return np.random.default_rng(self.seed).integers(0, 2, len(pairs)).astype(np.int8)


def _greater(figures: NDArray, name: str) -> NDArray[np.int8]:
    """Return the label of each row of the figures ``(N, 2)`` called ``name``, int8 ``(N,)``."""
    if (missing := np.isnan(figures).any(axis=1)).any():  # NaN would compare as equal
        raise ConfigError(
            f"the {name} of {missing.sum()} of {len(figures)} pairs is NaN, the first of them pair {missing.argmax()}: "
            "record them again, or choose another --judge"
        )
    first, second = figures[:, 0], figures[:, 1]
    labels = np.where(first > second, Preference.FIRST, np.where(second > first, Preference.SECOND, Preference.TIE))
    return labels.astype(np.int8)
