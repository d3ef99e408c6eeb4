"""Metrics as JSON lines and as TensorBoard reads them."""

import threading
from pathlib import Path

from groundling.training.tracking import Tracker, read_metrics


def test_tensorboard_reads_what_is_logged_and_forgets_what_is_done_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = Tracker(tmp_path, 0)
    for update in (1, 2, 3):
        tracker.log({"update": update, "step": 10 * update, "loss": 0.5 * update, "success_rate": None})
    # Killed here: nothing is closed. It goes on from its checkpoint of update 2.
    tracker = Tracker(tmp_path, 2)
    tracker.log({"update": 3, "step": 30, "loss": 7.0, "success_rate": float("nan")})
    rows = read_metrics(tmp_path)
    assert [row["loss"] for row in rows] == [0.5, 1.0, 7.0] and rows[-1]["success_rate"] is None
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(10, 0.5), (20, 1.0), (30, 7.0)]
    assert "success_rate" not in events.Tags()["scalars"]


def test_logging_starts_no_thread(tmp_path: Path) -> None:
    before = threading.enumerate()
    Tracker(tmp_path, 0).log({"update": 1, "step": 1, "loss": 0.0})
    assert threading.enumerate() == before
