"""Interquartile means, bootstrap intervals and areas, compared with values computed by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from groundling import intervals
from groundling.intervals import area_under_curve, estimate, interquartile_band, interquartile_mean


def test_the_lowest_and_highest_quarter_are_left_out() -> None:
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean(np.array([0.0, 1, 2, 3, 9])) == 2  # one of five is removed at each end
    assert interquartile_mean(np.array([0.2, 0.4, 0.9])) == pytest.approx(0.5)  # none of three is removed
    rows = np.array([[4.0, 1, 3, 2], [10, 20, 30, 40]])
    assert interquartile_mean(rows).tolist() == [2.5, 25]


def test_samples_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).random((40, 7))
    whole = estimate(scores)
    monkeypatch.setattr(intervals, "_CHUNK", 1000)
    assert estimate(scores) == whole


@pytest.mark.parametrize("case", json.loads((Path(__file__).parent / "data" / "rliable.json").read_text()))
def test_it_is_what_rliable_gives(case: dict) -> None:
    """Values of rliable 1.2.0: `get_interval_estimates` with `aggregate_iqm` and 50,000 samples."""
    iqm = estimate(np.array(case["scores"]))
    assert iqm.value == pytest.approx(case["iqm"], abs=1e-12)
    assert (iqm.low, iqm.high) == pytest.approx((case["low"], case["high"]), abs=0.02)  # the random samples differ


def test_the_interval_is_that_of_all_draws() -> None:
    """For two runs, 0 and 1, the mean of two samples is 0, 1/2 or 1 with probabilities 1/4, 1/2, 1/4."""
    iqm = estimate(np.array([0.0, 1.0]))
    assert (iqm.value, iqm.low, iqm.high) == (0.5, 0, 1)
    # For the plain mean of 40 runs, the percentile interval is close to the normal one.
    scores = np.random.default_rng(1).normal(size=40)
    wide = estimate(scores, lambda x: x.mean(axis=-1))
    half = 1.96 * scores.std() / math.sqrt(40)
    assert wide.low == pytest.approx(scores.mean() - half, abs=0.04)
    assert wide.high == pytest.approx(scores.mean() + half, abs=0.04)
    assert wide == estimate(scores, lambda x: x.mean(axis=-1)) != estimate(scores)


def test_runs_are_drawn_for_each_task_on_its_own() -> None:
    same = np.array([[0.1, 0.9]] * 3)  # the runs agree, so each task keeps its value in every sample
    mean = estimate(same, lambda x: x.mean(axis=-1))
    assert mean.value == pytest.approx(0.5) and mean.low == pytest.approx(mean.high) == pytest.approx(0.5)
    independent = np.array([[0.0] * 8, [1.0] * 8])  # if tasks were sampled together, the interval would be [0, 1]
    mean = estimate(independent, lambda x: x.mean(axis=-1))
    assert 0.2 <= mean.low <= 0.3 and 0.7 <= mean.high <= 0.8  # as for 16 tosses of a coin
    one = estimate(np.array([0.3]))
    assert one.value == one.low == one.high == 0.3


def test_a_band_is_a_pointwise_interval() -> None:
    curves = np.array([[0.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 1.0, 0.5]])
    centre, low, high = interquartile_band(curves)
    assert centre.tolist() == [0.5, 1, 0.5]
    assert low.tolist() == [0, 1, 0.5] and high.tolist() == [1, 1, 0.5]


def test_the_area_is_the_mean_height() -> None:
    steps, values = np.array([10.0, 20.0]), np.array([0.0, 1.0])
    assert area_under_curve(steps, values, 20) == pytest.approx((0 + 5) / 20)
    assert area_under_curve(steps, values, 40) == pytest.approx((0 + 5 + 20) / 40)  # constant after the last value
    assert area_under_curve(steps, values, 15) == pytest.approx((0 + 0.5 * 5 * 0.5) / 15)  # cut between two values
    assert area_under_curve(np.array([5.0]), np.array([0.7]), 10) == pytest.approx(0.7)
