"""The labels of preference pairs."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError

_ROUNDING = 0.015  # how far the sum of three probabilities may be from 1: each may be rounded to two decimals


class Preference(IntEnum):
    """The codes of a file of labels."""

    FIRST = 0
    SECOND = 1
    TIE = 2
    UNKNOWN = 3  # Without a valid answer: not trained on, and asked again

    @property
    def swapped(self) -> "Preference":
        """The preference of the same pair in the other order."""
        return Preference(1 - self) if self <= Preference.SECOND else self


def check_labels(labels: NDArray, count: int, where: str) -> None:
    """Raise `ConfigError` unless labels are ``count`` integer codes of `Preference`."""
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise ConfigError(f"{where}: {labels.dtype} {labels.shape}, expected int8 ({count},)")
    if count and not (labels.min() >= 0 and labels.max() <= Preference.UNKNOWN):
        raise ConfigError(
            f"{where}: codes from {labels.min()} to {labels.max()}, expected 0 first, 1 second, 2 tie, 3 unknown"
        )


def check_soft_labels(soft: NDArray, count: int, where: str) -> None:
    """Raise `ConfigError` unless rows are the probabilities of first, second and tie, or contain NaN."""
    if soft.shape != (count, 3) or soft.dtype.kind != "f":
        raise ConfigError(f"{where}: {soft.dtype} {soft.shape}, expected float32 ({count}, 3)")
    indices = np.flatnonzero(~np.isnan(soft).any(1))
    rows = soft[indices].astype(np.float64)
    outside = ((rows < -_ROUNDING) | (rows > 1 + _ROUNDING)).any(1)
    wrong = indices[outside | (np.abs(rows.sum(1) - 1) > _ROUNDING)]
    if len(wrong):
        raise ConfigError(
            f"{where}: row {wrong[0]} is {soft[wrong[0]].tolist()}, expected the probabilities of first, second and "
            "tie, which sum to 1: write those (of logits the softmax), or NaN where only the label is known"
        )
