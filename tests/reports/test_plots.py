"""Data of learning curves."""

from pathlib import Path

import numpy as np

from groundling.intervals import IntervalEstimate
from groundling.reports import plots


def test_a_moving_mean_weighs_episodes_and_not_updates() -> None:
    rows = [
        {"step": 10, "success_rate": 1.0, "loss": 1.0, "episodes": 1},  # one short episode, a success
        {"step": 20, "success_rate": 0.0, "loss": 0.0, "episodes": 10},
        {"step": 30, "success_rate": None, "loss": 0.5, "episodes": 10},
    ]
    steps, values, weights = plots._curve(rows, "success_rate")
    assert steps.tolist() == [10, 20] and weights.tolist() == [1, 9]
    assert np.allclose(plots.smooth(values, weights), 0.1)
    assert plots._curve(rows, "loss")[2].tolist() == [1, 1, 1]


def test_runs_without_a_figure_are_left_out() -> None:
    whole = [{"step": s, "success_rate": 0.5, "episodes": s} for s in (1, 2, 3)]
    figure = plots.svg(plots.draw_learning_curve({"a": [whole, []], "b": [[]]}, "success_rate", "success rate"))
    assert "nan" not in figure.lower() and ">b<" not in figure


def test_figures_that_no_run_has_are_not_drawn():
    assert plots.small_multiples({"a": [[{"step": 1, "loss": None}]]}, ["loss"]) == ""
    assert plots.small_multiples({"a": [[{"step": 1, "loss": 2.0}]]}, ["loss"]).count("<svg") == 1


def test_a_group_without_the_first_metric_is_in_the_legend() -> None:
    runs = {name: [[{"step": s, key: float(s)} for s in (1, 2)]] for name, key in (("a", "x"), ("b", "y"))}
    figure = plots.draw_curves(runs, {"x": "first", "y": "second"}, {})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_dollar_signs_in_names_are_no_mathematics(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0} for step in range(4)]
    name, title = r"cost $\nothing$ and $5", "$x^$"
    figure = plots.draw_learning_curve({name: [rows]}, "loss", title, {"$}$": 0.5}, steps="$_$")
    plots.save(figure, tmp_path / "curve")
    drawn = (tmp_path / "curve.svg").read_text()
    for text in (name, title, "$}$", "$_$"):
        assert f">{text}</text>" in drawn
    estimates = {"$\\a$": {"$^$": IntervalEstimate(0.5, 0.4, 0.6)}}
    plots.save(plots.draw_figures(estimates), tmp_path / "figures")
    panels = {"$\\b$": {"$^$": {"$_$": IntervalEstimate(0.5, 0.4, 0.6), "b": IntervalEstimate(0.5, 0.4, 0.6)}}}
    plots.save(plots.draw_estimates(panels, {}, "$x"), tmp_path / "estimates")
    drawn = (tmp_path / "figures.svg").read_text() + (tmp_path / "estimates.svg").read_text()
    for text in ("$\\a$", "$^$", "$\\b$", "$_$"):
        assert f">{text}</text>" in drawn
