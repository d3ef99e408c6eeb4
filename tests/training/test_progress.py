"""The progress display of a run, and the warnings at its end."""

import io
import re

import pytest
from rich.console import Console

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
    """Show an update of 100 steps: 20 seconds of collection, 60 of learning, and in every other one 10 of saving."""
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
    assert len(shown_left) == len(shown.getvalue().splitlines()) == 40  # one line per update
    for now, left in shown_left[3:-2]:
        assert left == pytest.approx(clock.now - now, rel=0.3)
    assert shown_left[-1][1] == 0
