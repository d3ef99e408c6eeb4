"""Means, interquartile means and areas under curves, with intervals (Agarwal et al. 2021, arXiv 2108.13264)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000  # Number of bootstrap samples
_CHUNK = 2**22  # Scores resampled per chunk: all 2,000 bootstrap samples of 50,000 scores would need 1.6 GB


@dataclass(frozen=True)
class IntervalEstimate:
    """A statistic and its 95% interval."""

    value: float
    low: float
    high: float

    def text(self, spec: str) -> str:
        """Format as `0.870 [0.827, 0.903]`, omitting an interval of zero width, such as that of a single run."""
        if self.low == self.high:
            return f"{self.value:{spec}}"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half along the last axis; for fewer than four values, the mean of all.

    ``n // 4`` values are cut from each end, as in SciPy's ``trim_mean(scores, 0.25)`` and rliable's ``aggregate_iqm``.
    """
    ordered = np.sort(scores, axis=-1)
    cut = ordered.shape[-1] // 4
    middle: np.ndarray = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
    return middle


def estimate(
    scores: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = interquartile_mean
) -> IntervalEstimate:
    """Return a statistic of all scores with its stratified percentile-bootstrap 95% interval.

    Runs are resampled with replacement, independently for each task, as in rliable's ``get_interval_estimates``. The
    interval has zero width for a single run; for three runs of one task, it spans at most their range. The same
    scores always yield the same interval, because the seed is fixed.

    Args:
        scores: ``(runs, tasks)``, or ``(runs,)`` for one task.
        statistic: Function from ``(…, runs × tasks)`` to ``(…,)``.
    """
    table = scores.reshape(len(scores), -1)  # (runs, tasks)
    runs, tasks = table.shape
    generator, chunk = np.random.default_rng(0), max(1, _CHUNK // table.size)
    values = np.empty(_RESAMPLES)
    for first in range(0, _RESAMPLES, chunk):
        part = values[first : first + chunk]
        drawn = generator.integers(runs, size=(len(part), runs, tasks))
        part[:] = statistic(table[drawn, np.arange(tasks)].reshape(len(part), -1))
    low, high = np.percentile(values, (2.5, 97.5))
    return IntervalEstimate(float(statistic(table.ravel())), float(low), float(high))


def interquartile_band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the interquartile mean and pointwise 95% interval of curves ``(runs, points)``, resampling whole runs."""
    runs = len(curves)
    drawn = np.random.default_rng(0).integers(runs, size=(_RESAMPLES, runs))
    values = interquartile_mean(np.moveaxis(curves[drawn], 1, -1))  # (resamples, points)
    low, high = np.percentile(values, (2.5, 97.5), axis=0)
    return interquartile_mean(curves.T), low, high


def area_under_curve(steps: np.ndarray, values: np.ndarray, total: float) -> float:
    """Return a curve's mean height from step 0 to ``total``; the curve is linear between points and constant beyond."""
    inside = steps < total
    x = np.concatenate([[0.0], steps[inside], [total]])
    y = np.interp(x, steps, values)
    return float(np.trapezoid(y, x) / total)


def wilson_interval(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval for a proportion (Wilson 1927); 95% by default."""
    if count <= 0 or not 0 <= successes <= count:
        raise ValueError(f"expected 0 <= successes <= count and count > 0, got {successes} of {count}")
    p = successes / count
    centre = p + z * z / (2 * count)
    spread = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # At the extremes, the formula yields 0 and 1 only up to rounding.
    low = (centre - spread) / scale if successes > 0 else 0.0
    high = (centre + spread) / scale if successes < count else 1.0
    return low, high
