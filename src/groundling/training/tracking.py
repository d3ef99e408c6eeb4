"""Log the metrics and samples of a run's updates to JSON Lines, TensorBoard, Weights & Biases and Trackio."""

import importlib
import json
import math
import os
import platform
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.errors import RunError, importing
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.io.row_files import RowFile, read_rows, unwritable
from groundling.io.terminal import is_live
from groundling.policies.policy import Policy
from groundling.worlds.episode import Episode
from groundling.worlds.world import Collector

METRICS = "metrics.jsonl"  # Metrics of each update, in the run's folder
_SAMPLED_UPDATES = 50  # Number of updates with samples, in addition to the first
_SAMPLES = 4  # Samples per update


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    return read_rows(run_dir / METRICS, consecutive=True)


class Tracker:
    """Append to ``metrics.jsonl`` and ``tensorboard/`` from the update at which a run resumes.
    Each call flushes both to disk. TensorBoard discards steps that a resumed run writes again. PyTorch's
    ``SummaryWriter`` would write in a thread, up to two minutes later, and would not report a full disk.
    """

    def __init__(self, run_dir: Path, update: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._rows = RowFile(run_dir / METRICS, update, consecutive=True)
        folder = run_dir / "tensorboard"
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{platform.node()}.{os.getpid()}"
        self._events = RecordWriter((folder / name).open("wb"))
        self._add(Event(file_version="brain.Event:2"))
        next_step = 0 if self._rows.is_empty else self._rows.last_step + 1
        self._add(Event(step=next_step, session_log=SessionLog(status=SessionLog.START)))

    def log(self, row: dict[str, Any]) -> None:
        """Log the metrics of one update; NaN and infinity, which JSON does not support, become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._rows.append(clean)
        figures = {k: v for k, v in clean.items() if v is not None and k not in ("update", "step")}
        self.log_validation(figures, row["update"], row["step"])

    def log_validation(self, figures: Mapping[str, float], update: int, step: int) -> None:
        """Write validation metrics to TensorBoard only."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=k, simple_value=v) for k, v in figures.items() if math.isfinite(v)]
        try:
            self._add(Event(step=step, summary=Summary(value=values)))
        except OSError as error:
            raise unwritable(self._rows.path, error) from error

    def close(self) -> None:
        self._events.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._events.write(event.SerializeToString())
        self._events.flush()


class SampleLog:
    """Write samples of some rollouts, evenly spaced over the steps, to the run's ``samples/train.jsonl``."""

    def __init__(self, collector: Collector, run_dir: Path, update: int, num_steps: int) -> None:
        self._collector, self._num_steps = collector, num_steps
        self._path = run_dir / "samples" / "train.jsonl"
        self._rows = RowFile(self._path, update) if self._path.exists() else None
        self._last_step = 0 if self._rows is None else self._rows.last_step

    def log(self, row: dict[str, Any]) -> None:
        """Write samples of the update whose metrics are ``row``, if they are due."""
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
    """Log metrics to a Weights & Biases or Trackio run, with the update as the step."""

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
    """Log to a Weights & Biases run, whose ID is in ``wandb.json``; ``config`` is uploaded, so redact it first."""
    wandb, path = _client("wandb", project), run_dir / "wandb.json"
    if not path.exists():
        write_atomically(path, json.dumps({"id": uuid.uuid4().hex}) + "\n")
    try:
        id = str(read_object(path, SETTINGS)["id"])
    except (ValueError, KeyError) as error:
        raise RunError(f"{path} contains no Weights & Biases run ID ({error}): delete it") from error
    # By default, wandb uploads the command line with its paths, the host name, and all printed output.
    private = wandb.Settings(x_disable_meta=True, disable_git=True, disable_code=True, console="off", host="")
    return OnlineLog(
        wandb.init(project=project, name=name, config=config, dir=run_dir, id=id, resume="allow", settings=private)
    )


def trackio_log(project: str, name: str, config: dict[str, Any]) -> OnlineLog:
    """Log to a Trackio run, which is resumed by its name; ``config`` may be uploaded, so redact it first."""
    # By default, Trackio also logs the load of the whole machine.
    run = _client("trackio", project).init(
        project=project, name=name, config=config, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
    )
    return OnlineLog(run, step_key="steps")  # "step" is reserved by Trackio


def _client(name: str, project: str) -> Any:
    with importing(f"{name}, which training.{name}={project} needs,", name):
        return importlib.import_module(name)


_LOW_ENTROPY_UPDATES = 5  # Consecutive updates below the floor before the run is stopped
_GOOD_SUCCESS_RATE = 0.95  # A policy that succeeds this often may have a low entropy


@dataclass
class Counters:
    update: int = 0
    step: int = 0
    episodes: int = 0
    seconds: float = 0.0
    low_entropy_updates: int = 0  # Consecutive updates with failed episodes and an entropy below the floor

    def count_entropy(self, entropy: float, floor: float, episodes: Sequence[Episode]) -> None:
        """Count consecutive updates with low entropy (in nats); updates without episodes that can fail are ignored."""
        if episodes and all(e.success is not None for e in episodes):
            fails = sum(bool(e.success) for e in episodes) / len(episodes) < _GOOD_SUCCESS_RATE
            self.low_entropy_updates = self.low_entropy_updates + 1 if entropy < floor and fails else 0

    def check_entropy(self, entropy: float, floor: float, policy: Policy) -> None:
        """Raise `RunError` with advice if the entropy has been too low for too long."""
        # A run resumed with a lower floor still has the counter for the higher one, so compare the entropy again.
        if entropy >= floor or self.low_entropy_updates < _LOW_ENTROPY_UPDATES:
            return
        advice = "restart with a higher algorithm.args.entropy_coefficient or a lower learning_rate"
        since = f"for {_LOW_ENTROPY_UPDATES} updates while episodes still failed: it no longer explores"
        if self.low_entropy_updates >= self.update:  # low from the start, which a lower learning rate cannot change
            advice = policy.exploration_advice() or advice
            since = "from the first update onward, while episodes failed: it never explored"
        below = f"the policy's entropy was below world.entropy_floor={floor} {since}"
        raise RunError(f"{below}. To fix this, {advice}; or set world.entropy_floor=0 to continue anyway")


def checked_figures(given: Any, giver: str) -> dict[str, float]:
    """Convert a component's metrics, including torch and NumPy scalars, to numbers; raise `RunError` if that fails."""
    try:
        return {str(name): one if isinstance(one, int | float) else one.item() for name, one in given.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        shown = " ".join(repr(given).split())
        raise RunError(
            f"the {giver} returned {shown:.200} as an update's metrics; expected numbers by name: {{'loss': 0.5}}"
        ) from error


class ShapedReturns:
    """Sum each env's shaped rewards, and the shaping alone, over episodes that may span several rollouts."""

    def __init__(self, num_envs: int) -> None:
        self.sums = np.zeros((2, num_envs))  # sums over the current episodes: shaped rewards, shaping alone

    def add(self, rollout: Rollout, shaped: Tensor) -> dict[str, float | None]:
        """Add a rollout, given its rewards with the KL penalty, ``(num_steps, num_envs)``.
        Return statistics over the episodes that ended in it or were cut off at its end: ``shaped_return_*`` for
        returns with the penalty, and ``shaping_*`` for the penalty alone. All are None if no episode ended.
        """
        rewards, unshaped = shaped.double().numpy(), rollout.rewards.double().numpy()
        if rollout.groups is not None:  # each rollout starts with new episodes
            self.sums[:] = 0
        ended = []
        for t, done in enumerate(rollout.dones.numpy()):
            self.sums += np.stack([rewards[t], rewards[t] - unshaped[t]])
            ended.append(self.sums[:, done])
            self.sums[:, done] = 0
        if rollout.groups is not None:  # including unfinished episodes up to this point
            ended.append(self.sums[:, ~rollout.dones.any(0).numpy()])
        sums = np.concatenate(ended, axis=1)  # (2, number of episodes)
        return {
            f"{name}_{statistic}": float(getattr(values, statistic)()) if len(values) else None
            for name, values in zip(("shaped_return", "shaping"), sums, strict=True)
            for statistic in ("mean", "std", "min", "max")
        }


class TrainingProgress:
    """Show steps, rewards, speed, time left, and the return, success rate and precision of the last 100 episodes.
    The time left is estimated from completed updates, since the step count only advances during collection.
    """

    def __init__(
        self, console: Console, total_steps: int, step: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._total, self._clock = console, total_steps, clock
        self._step = self._first_step = step
        self._began = clock()
        self._speed = 0.0  # Steps per second over all updates so far
        self._recent: deque[Episode] = deque(maxlen=100)
        self._rewards: Mapping[str, float] = {}
        self._bar = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not is_live(console),
        )
        self._task = self._bar.add_task(self._describe(), total=total_steps, completed=step)

    def phase(self, name: str) -> None:
        """Show the current phase of the update: collecting, learning, measuring or saving."""
        self._bar.update(self._task, description=f"{self._describe()} · {name}")

    def advance(self, steps: int) -> None:
        self._step += steps
        self._bar.update(self._task, completed=self._step)

    def finish_update(
        self, episodes: Sequence[Episode], step: int, rewards: Mapping[str, float] | None = None
    ) -> None:
        """Update the display with an update's finished episodes, the steps so far, and the means of other rewards."""
        self._recent.extend(episodes)
        self._rewards = rewards or {}
        self._step = step
        self._speed = (step - self._first_step) / max(self._clock() - self._began, 1e-9)
        self._bar.update(self._task, completed=step, description=self._describe())
        if not is_live(self._console):
            self._console.print(self._describe(), highlight=False, soft_wrap=True)

    def _describe(self) -> str:
        parts = [f"step {self._step:,}/{self._total:,}"]
        if self._recent:
            count = len(self._recent)
            parts.append(f"return {sum(e.episode_return for e in self._recent) / count:.2f}")
            if all(e.success is not None for e in self._recent):
                parts.append(f"success {sum(bool(e.success) for e in self._recent) / count:.2f}")
            firsts = [e.figures["first_precision"] for e in self._recent if "first_precision" in e.figures]
            if firsts:
                parts.append(f"precision {sum(firsts) / len(firsts):.2f}")
        parts += [f"{name} {value:.2f}" for name, value in self._rewards.items()]
        if self._speed:
            left = timedelta(seconds=round(max(self._total - self._step, 0) / self._speed))
            speed = f"{self._speed:,.0f}" if self._speed >= 10 else f"{self._speed:.2g}"
            parts.append(f"{speed} steps/s · {left} left")
        return " · ".join(parts)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
