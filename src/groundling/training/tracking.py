"""A run's figures and samples by update: JSON Lines, TensorBoard, Weights & Biases, Trackio."""

import importlib
import json
import math
import os
import platform
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundling.errors import ConfigError, RunError
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.io.row_files import RowFile, read_rows, unwritable
from groundling.worlds.collector import Collector

METRICS = "metrics.jsonl"  # In a run's folder: its figures by update
_SAMPLED_UPDATES = 50  # Updates with samples, besides the first
_SAMPLES = 4  # Samples of an update


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    return read_rows(run_dir / METRICS, consecutive=True)


class Tracker:
    """Append to ``metrics.jsonl`` and ``tensorboard/``, after the update from which a run resumes."""

    def __init__(self, run_dir: Path, update: int) -> None:
        self._rows = RowFile(run_dir / METRICS, update, consecutive=True)
        self._events = EventFile(
            run_dir / "tensorboard", purge_step=0 if self._rows.is_empty else self._rows.last_step + 1
        )

    def log(self, row: dict[str, Any]) -> None:
        """Write the figures of one update; NaN and infinity, which JSON lacks, become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._rows.append(clean)
        figures = {k: v for k, v in clean.items() if v is not None and k not in ("update", "step")}
        self.log_validation(figures, row["update"], row["step"])

    def log_validation(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Write figures to TensorBoard alone."""
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        try:
            self._events.write(finite, step)
        except OSError as error:
            raise unwritable(self._rows.path, error) from error

    def close(self) -> None:
        self._events.close()


class SampleLog:
    """Write the first samples of some rollouts to the run's ``samples/train.jsonl``, if its world has any.
    The updates are spread evenly over the training, and depend on steps alone: a resumed run keeps the same ones.
    """

    def __init__(self, collector: Collector, run_dir: Path, update: int, num_steps: int) -> None:
        self._collector, self._num_steps = collector, num_steps
        self._path = run_dir / "samples" / "train.jsonl"
        self._rows = RowFile(self._path, update) if self._path.exists() else None
        self._last_step = 0 if self._rows is None else self._rows.last_step

    def log(self, row: dict[str, Any]) -> None:
        """Write samples of the update whose figures are ``row``, if one is due."""
        points = [_SAMPLED_UPDATES * step // self._num_steps for step in (self._last_step, row["step"])]
        if self._last_step and points[0] == points[1]:
            return
        for sample in self._collector.samples()[:_SAMPLES]:
            if self._rows is None:
                self._path.parent.mkdir(exist_ok=True)
                self._rows = RowFile(self._path, row["update"])
            self._rows.append({"update": row["update"], "step": row["step"], **sample})
            self._last_step = row["step"]


class OnlineLog:
    """Log figures to a run of Weights & Biases or Trackio, at the number of their update."""

    def __init__(self, run: Any, step_key: str = "step") -> None:
        self._run, self._step_key = run, step_key

    def log(self, row: dict[str, Any]) -> None:
        figures = {self._step_key if k == "step" else k: v for k, v in row.items() if v is not None and k != "update"}
        self._run.log(figures, step=row["update"])

    def log_validation(self, figures: Mapping[str, float], update: int, step: int) -> None:
        self._run.log({name: value for name, value in figures.items() if math.isfinite(value)}, step=update)

    def close(self) -> None:
        self._run.finish()


def wandb_log(project: str, name: str, config: dict[str, Any], run_dir: Path) -> OnlineLog:
    """Log to Weights & Biases, as one run there that continues when this one is resumed.
    ``wandb.json`` in the run's folder keeps its id. ``config`` is sent, so pass it through `shareable`.
    """
    wandb, path = _client("wandb", project), run_dir / "wandb.json"
    if not path.exists():
        write_atomically(path, json.dumps({"id": uuid.uuid4().hex}) + "\n")
    try:
        id = str(read_object(path, SETTINGS)["id"])
    except (ValueError, KeyError) as error:
        raise RunError(f"{path} names no run of Weights & Biases ({error}): delete it") from error
    # By default it sends the command with its paths, this machine's name, and every printed line.
    private = wandb.Settings(x_disable_meta=True, disable_git=True, disable_code=True, console="off", host="")
    return OnlineLog(
        wandb.init(project=project, name=name, config=config, dir=run_dir, id=id, resume="allow", settings=private)
    )


def trackio_log(project: str, name: str, config: dict[str, Any]) -> OnlineLog:
    """Log to Trackio, which keeps figures on this machine (``trackio show``) unless its variables say otherwise.
    A resumed run continues under its name. ``config`` may be sent, so pass it through `shareable`.
    """
    # By default it also logs the load of the whole machine.
    run = _client("trackio", project).init(
        project=project, name=name, config=config, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
    )
    return OnlineLog(run, step_key="steps")  # "step" is Trackio's own key


def _client(name: str, project: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ConfigError(
            f"training.{name}={project} needs pip install 'groundling[{name}]'; training.{name}=null turns it off"
        ) from None


class EventFile:
    """Scalars for TensorBoard, on the disk when `write` returns; earlier files count only before ``purge_step``.
    PyTorch's ``SummaryWriter`` writes from a thread, up to two minutes later: a killed run loses figures, and a full
    disk is never reported.
    """

    def __init__(self, folder: Path, purge_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{platform.node()}.{os.getpid()}"
        self._records = RecordWriter((folder / name).open("wb"))
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, figures: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._records.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()
