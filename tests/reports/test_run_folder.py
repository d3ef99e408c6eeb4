"""The data that reports and the browser UI read from a run's folder."""

from pathlib import Path

from groundling.config.compose import compose
from groundling.reports.run_folder import RunFolder, learning_figures


def test_trained_rewards_are_among_the_first_metrics() -> None:
    words = ["reward.env.coefficient=0", "+reward.count.coefficient=0.1"]
    config = compose("demo", words)
    row = {"update": 1, "step": 8, "first_named": 0.5, "reward/env": 0.1, "reward/count": 0.2, "return_mean": 0.3}
    run = RunFolder(Path("run"), config, [row], {}, [], {}, [], [], None)
    assert learning_figures([run])[:3] == ["return_mean", "reward/count", "first_named"]
    assert "reward/env" in learning_figures([run])
