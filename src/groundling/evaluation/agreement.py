"""How far raters agree."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np


def krippendorff_alpha(units: Sequence[Sequence[Any]], level: Literal["nominal", "ordinal"]) -> float:
    """Krippendorff's alpha: 1 minus the observed disagreement over the one to be expected by chance.

    After Krippendorff 2011, *Computing Krippendorff's alpha-reliability*: pairs of values within a unit, each unit
    weighed by its number of values; units need not have been rated by all. There is no small library for it under a
    licence that ours can build on.

    Args:
        units: The values that each unit was given, at least by two raters to count.
        level: ``nominal``, values differ or do not; ``ordinal``, numbers of which only the order matters.

    Returns:
        1 for full agreement, 0 for chance, below for worse; NaN if no unit has two values or all values are equal.
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
    else:  # the values that lie between two, half of their own counts included, squared
        middle = np.cumsum(totals) - totals / 2
        distances = np.square(middle[:, None] - middle[None, :])
    observed = (coincidences * distances).sum()
    expected = ((np.outer(totals, totals) - np.diag(totals)) * distances).sum() / (totals.sum() - 1 or 1)
    return float(1 - observed / expected) if expected else float("nan")
