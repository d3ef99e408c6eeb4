"""Metrics as JSON lines and in TensorBoard."""

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groundling.errors import ConfigError
from groundling.io.row_files import read_rows
from groundling.training.tracking import OnlineLog, SampleLog, Tracker, read_metrics, trackio_log, wandb_log


def test_tensorboard_reads_figures_and_drops_repeated_updates(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = Tracker(tmp_path, 0)
    for update in (1, 2, 3):
        tracker.log({"update": update, "step": 10 * update, "loss": 0.5 * update, "success_rate": None})
    # The run is killed here without closing anything. It continues from its checkpoint of update 2.
    tracker = Tracker(tmp_path, 2)
    tracker.log({"update": 3, "step": 30, "loss": 7.0, "success_rate": float("nan")})
    tracker.log_validation({"validation/reward": 0.25, "validation/bleu": float("nan")}, 3, 30)
    rows = read_metrics(tmp_path)
    assert [row["loss"] for row in rows] == [0.5, 1.0, 7.0] and rows[-1]["success_rate"] is None
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(10, 0.5), (20, 1.0), (30, 7.0)]
    assert [(e.step, e.value) for e in events.Scalars("validation/reward")] == [(30, 0.25)]
    assert "validation/bleu" not in events.Tags()["scalars"]
    assert "success_rate" not in events.Tags()["scalars"]


class _Talking:
    """Prints the required output for each rollout, and more."""

    def samples(self) -> list[dict[str, Any]]:
        return [{"text": str(number)} for number in range(9)]


def test_a_long_training_keeps_few_samples_and_the_same_ones_when_resumed(tmp_path: Path) -> None:
    def log(name: str, first: int, last: int) -> None:
        samples = SampleLog(_Talking(), tmp_path / name, first, 30_000)  # type: ignore[arg-type]
        for update in range(first + 1, last + 1):
            samples.log({"update": update, "step": 10 * update, "loss": 0.5})

    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    log("whole", 0, 3000)
    log("killed", 0, 1234)
    log("killed", 1000, 3000)
    rows = read_rows(tmp_path / "whole" / "samples" / "train.jsonl")
    assert rows == read_rows(tmp_path / "killed" / "samples" / "train.jsonl")
    updates = [row["update"] for row in rows[::4]]
    assert updates == [1, *range(60, 3001, 60)] and [row["text"] for row in rows[:4]] == ["0", "1", "2", "3"]
    silent = SimpleNamespace(samples=list)
    SampleLog(silent, tmp_path, 0, 10).log({"update": 1, "step": 1})  # type: ignore[arg-type]
    assert not (tmp_path / "samples").exists()


class _StandIn(types.ModuleType):
    """A stand-in for wandb or trackio."""

    Settings = dict

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun: list[dict[str, Any]] = []
        self.events: list[Any] = []

    def init(self, **options: Any) -> types.SimpleNamespace:
        self.begun.append(options)
        return types.SimpleNamespace(
            log=lambda figures, step: self.events.append((step, figures)), finish=lambda: self.events.append("end")
        )


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_online_logs_continue_one_run_and_send_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin() -> OnlineLog:
        arguments = "language", "demo-easy-seed1", {"seed": 1}
        return wandb_log(*arguments, tmp_path) if name == "wandb" else trackio_log(*arguments)

    stand_in, step = _StandIn(name), {"wandb": "step", "trackio": "steps"}[name]
    monkeypatch.setitem(sys.modules, name, stand_in)
    for update in (1, 2):
        log = begin()
        log.log({"update": update, "step": 10 * update, "loss": 0.5, "success_rate": None})
        log.log_validation({"validation/reward": 0.5, "validation/bleu": float("nan")}, update, 10 * update)
        log.close()
    assert stand_in.events == [
        *((1, {step: 10, "loss": 0.5}), (1, {"validation/reward": 0.5}), "end"),
        *((2, {step: 20, "loss": 0.5}), (2, {"validation/reward": 0.5}), "end"),
    ]
    first, second = stand_in.begun
    assert first == second and first["resume"] == "allow" and first["project"] == "language"
    if name == "wandb":  # otherwise it sends the command and the machine's name
        assert first["settings"]["x_disable_meta"] and first["settings"]["console"] == "off"
    else:
        assert first["auto_log_cpu"] is False
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"groundling\[{name}\]"):
        begin()
