"""A run's figures: one JSON object per update, and the same in TensorBoard."""

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

METRICS = "metrics.jsonl"
"""In a run's folder: its figures by update."""
TIME_KEYS = ("seconds", "steps_per_second")
"""The figures that differ between two runs of one seed."""


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``metrics.jsonl``, one per update; a last line cut off by a kill is left out.

    Raises:
        RunError: another line is no row, or rows are missing, doubled or out of their order.
    """
    return read_rows(run_dir / METRICS, consecutive=True)


class Tracker:
    """Appends to ``metrics.jsonl`` and ``tensorboard/``, going on after the update that a run resumes from."""

    def __init__(self, run_dir: Path, update: int) -> None:
        self._rows = RowFile(run_dir / METRICS, update, consecutive=True)
        self._events = EventFile(
            run_dir / "tensorboard", purge_step=0 if self._rows.is_empty else self._rows.last_step + 1
        )

    def log(self, row: dict[str, Any]) -> None:
        """Write one update's figures; NaN and infinity, which JSON lacks, become null.

        Raises:
            RunError: the file cannot be written.
        """
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._rows.append(clean)
        figures = {k: v for k, v in clean.items() if v is not None and k not in ("update", "step")}
        try:
            self._events.write(figures, row["step"])
        except OSError as error:
            raise unwritable(self._rows.path, error) from error

    def tell(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Write other figures of a step to TensorBoard alone.

        Raises:
            RunError: the file cannot be written.
        """
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        try:
            self._events.write(finite, step)
        except OSError as error:
            raise unwritable(self._rows.path, error) from error

    def close(self) -> None:
        self._events.close()


class WandbLog:
    """The same figures in Weights & Biases, as one run there that goes on when this one is resumed.

    Args:
        project: Its name there.
        name: What the run is called there.
        config: Told beside the figures, so `groundling.io.redaction.shareable`.
        run_dir: The run's folder, whose ``wandb.json`` keeps the run's id; offline runs are kept there, too.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self, project: str, name: str, config: dict[str, Any], run_dir: Path) -> None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise ConfigError(
                f"training.wandb={project} needs pip install 'groundling[wandb]'; training.wandb=null does without"
            ) from None
        kept = run_dir / "wandb.json"
        if not kept.exists():
            write_atomically(kept, json.dumps({"id": uuid.uuid4().hex}) + "\n")
        try:
            id = str(read_object(kept, SETTINGS)["id"])
        except (ValueError, KeyError) as error:
            raise RunError(f"{kept} names no run of Weights & Biases ({error}): delete it") from error
        # By itself it would tell the command with its paths, this machine's name, and every printed line.
        silent = wandb.Settings(
            x_disable_meta=True, disable_git=True, disable_code=True, console="off", host=""
        )
        self._run = wandb.init(
            project=project, name=name, config=config, dir=run_dir, id=id, resume="allow", settings=silent
        )

    def log(self, row: dict[str, Any]) -> None:
        """Tell one update's figures, at its number."""
        figures = {k: v for k, v in row.items() if v is not None and k != "update"}
        self._run.log(figures, step=row["update"])

    def tell(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Tell other figures of an update, beside those of `log`."""
        self._run.log({name: value for name, value in figures.items() if math.isfinite(value)}, step=update)

    def close(self) -> None:
        self._run.finish()


class TrackioLog:
    """The same figures in Trackio, which keeps them on this machine (``trackio show``), or where its variables say.

    Args:
        project: Its name there.
        name: What the run is called there; a run that is resumed goes on under its name.
        config: Told beside the figures, so `groundling.io.redaction.shareable`.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self, project: str, name: str, config: dict[str, Any]) -> None:
        try:
            import trackio
        except ModuleNotFoundError:
            raise ConfigError(
                f"training.trackio={project} needs pip install 'groundling[trackio]'; training.trackio=null "
                "does without"
            ) from None
        # By itself it would also log what else the machine computes.
        self._run = trackio.init(
            project=project,
            name=name,
            config=config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, row: dict[str, Any]) -> None:
        """Tell one update's figures, at its number."""
        # Its own key for that is "step", so that our step is told as "steps".
        figures = {
            "steps" if k == "step" else k: v for k, v in row.items() if v is not None and k != "update"
        }
        self._run.log(figures, step=row["update"])

    def tell(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Tell other figures of an update, beside those of `log`."""
        self._run.log({name: value for name, value in figures.items() if math.isfinite(value)}, step=update)

    def close(self) -> None:
        self._run.finish()


class EventFile:
    """Scalars as TensorBoard reads them.

    They are on the disk when `write` returns. PyTorch's ``SummaryWriter`` writes from a thread of its own, up to two
    minutes later: a killed run loses them, and a full disk is never told.

    Args:
        folder: TensorBoard's ``--logdir``; a file is added to those of earlier processes.
        purge_step: TensorBoard forgets what those wrote at this step and later.
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
        """Add these figures of one step."""
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
