"""The time left, as a run tells it."""

import io

import pytest
from rich.console import Console

from groundling.training import progress
from groundling.training.progress import TrainingProgress


@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_left_counts_learning_too(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update collects for 20 seconds and learns for 60: of ten updates four are left after six."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=120)
    with TrainingProgress(console, 1_000, 0) as bar:
        for update in range(1, 7):
            for _ in range(4):
                now += 5
                bar.advance(25)
            now += 60
            bar.finish_update([], 100 * update)
    assert "0:05:20 left" in shown.getvalue()
