"""Agreement of raters."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np


def krippendorff_alpha(units: Sequence[Sequence[Any]], level: Literal["nominal", "ordinal"]) -> float:
    """Return Krippendorff's alpha: 1 minus the ratio of observed and expected disagreement.

    After Krippendorff 2011, *Computing Krippendorff's alpha-reliability*: pairs of values within a unit, each unit
    weighted by its number of values; not all raters need to rate a unit.

    Args:
        units: The values of each unit; units with fewer than two values are ignored.
        level: ``nominal`` for categories; ``ordinal`` for numbers of which only the order matters.

    Returns:
        1 for full agreement, 0 for chance, less for worse; NaN if no unit has two values or all values are equal.
    """
    compared = [unit for unit in units if len(unit) > 1]
    values = sorted({value for unit in compared for value in unit})
    place = {value: index for index, value in enumerate(values)}
    coincidences = np.zeros((len(values), len(values)))
    for unit in compared:
        counts = np.bincount([place[value] for value in unit], minlength=len(values)).astype(float)
        coincidences += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    totals = coincidences.sum(1)
    if level == "nominal":
        distances = 1 - np.eye(len(values))
    else:  # squared number of values between two, with half of their own counts
        middle = np.cumsum(totals) - totals / 2
        distances = np.square(middle[:, None] - middle[None, :])
    observed = (coincidences * distances).sum()
    expected = ((np.outer(totals, totals) - np.diag(totals)) * distances).sum() / (totals.sum() - 1 or 1)
    return float(1 - observed / expected) if expected else float("nan")
