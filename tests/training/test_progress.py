"""The progress of a run, and warnings at its end."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from groundling.config.compose import compose
from groundling.training import train as train_module
from groundling.training.tracking import TrainingProgress


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _left(text: str) -> float:
    hours, minutes, seconds = map(int, re.findall(r"(\d+):(\d\d):(\d\d) left", text)[-1])
    return hours * 3600 + minutes * 60 + seconds


def _work(bar: TrainingProgress, clock: Clock, update: int) -> None:
    """Show an update of 100 steps: 20 seconds of collecting, 60 of learning, and 10 of saving in every second one."""
    bar.phase("collecting")
    for _ in range(4):
        clock.now += 5
        bar.advance(25)
    bar.phase("learning")
    clock.now += 60
    bar.finish_update([], 100 * update)
    if update % 2 == 0:
        bar.phase("saving")
        clock.now += 10


def test_further_rewards_are_shown() -> None:
    shown = io.StringIO()
    with TrainingProgress(Console(file=shown, width=120), 200, 0, Clock()) as bar:
        bar.finish_update([], 100, {"reward/reward_model": 0.893})
    assert "step 100/200 · reward/reward_model 0.89" in shown.getvalue()


@pytest.mark.parametrize("begun", [0, 700], ids=["from the start", "resumed"])
def test_the_time_left_is_right_after_a_tenth_of_the_run(begun: int) -> None:
    clock, shown, shown_left = Clock(), io.StringIO(), []
    with TrainingProgress(Console(file=shown, width=120), begun + 4_000, begun, clock) as bar:
        clock.now += 90  # the first update also compiles
        for update in range(1, 41):
            _work(bar, clock, begun // 100 + update)
            shown_left.append((clock.now - 10 * (update % 2 == 0), _left(shown.getvalue())))
    assert len(shown_left) == len(shown.getvalue().splitlines()) == 40  # a line for each update
    for now, left in shown_left[3:-2]:
        assert left == pytest.approx(clock.now - now, rel=0.3)
    assert shown_left[-1][1] == 0


def test_the_time_left_decreases_while_an_update_learns() -> None:
    clock, shown = Clock(), io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    with TrainingProgress(console, 1_000, 0, clock) as bar:
        for update in range(1, 7):
            _work(bar, clock, update)
        bar._bar.refresh()
        bar.phase("learning")
        clock.now += 30
        bar._bar.refresh()
    assert "learning" in shown.getvalue() and "saving" in shown.getvalue()
    # Four updates of 85 seconds on average are left, less the 40 since the sixth has ended.
    assert _left(shown.getvalue()) == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize(
    ("rates", "is_said"),
    [
        ([0.2] * 10, True),
        ([0.4] * 5 + [0.1] * 5, True),
        ([0.1] * 5 + [0.3] * 5, False),
        ([0.9] * 5 + [0.8] * 5, False),  # it was good before
        ([0.2] * 9, False),  # too few updates
    ],
)
def test_a_warning_says_that_success_did_not_improve(rates: list[float], is_said: bool) -> None:
    doubt = train_module._did_not_improve([{"success_rate": rate} for rate in rates])
    assert (doubt is not None) == is_said
    assert train_module._did_not_improve([{"loss": 1.0}] * 20) is None


@pytest.mark.parametrize(("changes", "is_said"), [([], True), (["~reward.env", "reward.count={}"], False)])
def test_a_run_without_env_reward_gives_no_warning_about_success(
    changes: list[str], is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "_did_not_improve", lambda rows: "no better than before")
    words = ["world.num_envs=2", "world.num_steps=6", "training.steps=12", "algorithm.args.minibatch_size=4"]
    said: list[str] = []
    config = compose("demo-easy", [*words, "device=cpu", *changes, f"run_dir={tmp_path}/run"])
    assert train_module.train(config, Console(quiet=True), said.append)
    assert ("no better than before" in said) == is_said
