"""A run: collect, learn, log, checkpoint, and again; resumed from wherever it was stopped."""

import json
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from rich.console import Console
from safetensors.torch import load_file, save_file

from groundling.algorithms.algorithm import Algorithm
from groundling.configs.schema import Config
from groundling.envs.vector import Episode
from groundling.errors import RunError
from groundling.policies.policy import Policy
from groundling.training import checkpoint
from groundling.training.build import make_algorithm, make_policy, make_training_envs
from groundling.training.collect import collect
from groundling.training.folder import open_run
from groundling.training.probes import ProbeLog
from groundling.training.progress import TrainingProgress
from groundling.training.tracking import Tracker, read_metrics

_LOW_ENTROPY_UPDATES = 5
"""Updates in a row below the entropy floor before a run is stopped."""
_SUCCESS_THAT_MAY_BE_CERTAIN = 0.95
"""A policy that succeeds this often has earned a low entropy."""


@dataclass
class Counters:
    """What a run has done so far."""

    update: int = 0
    step: int = 0
    episodes: int = 0
    seconds: float = 0.0
    low_entropy_updates: int = 0


def train(config: Config, console: Console, warn: Callable[[str], None] = warnings.warn) -> bool:
    """Train, or go on with, the run that ``config`` describes.

    Returns:
        Whether the run is complete; False if it was asked to stop (Ctrl-C, SIGTERM).

    Raises:
        GroundlingError: it cannot begin or go on; the last checkpoint stays.
    """
    with open_run(config) as folder:
        run = Run(config, folder, warn)
        if run.counters.update:
            console.print(f"resuming after update {run.counters.update} from {folder}", highlight=False)
        with _stop_signals(console) as stop_asked:
            return run.loop(console, stop_asked)


class Run:
    """A run's parts and where it stands."""

    def __init__(self, config: Config, folder: Path, warn: Callable[[str], None]) -> None:
        self.config, self.folder = config, folder
        found = checkpoint.latest(folder / "checkpoints", warn)
        if found is None and len(read_metrics(folder)) >= config.training.checkpoint_every + 1:
            raise RunError(
                f"{folder} holds metrics of a run but no whole checkpoint to go on from: bring one back, or set "
                "run_dir to a new folder to begin again"
            )
        self.counters = Counters()
        self.generators = {
            name: torch.Generator().manual_seed(2 * config.seed + i)
            for i, name in enumerate(("act", "learn"))
        }
        set_seed(config.seed)  # Python, NumPy and torch, for whatever draws from the global generators
        self.policy: Policy = make_policy(config, found)
        self.algorithm: Algorithm = make_algorithm(config, self.policy)
        self.envs = make_training_envs(config)
        self.memory = self.policy.initial_memory(config.env.num_envs)
        if found is None:
            self.envs.reset()
        else:
            self._load(found)

    def loop(self, console: Console, stop_asked: Callable[[], bool]) -> bool:
        """Update until all steps are taken (True) or a stop is asked for (False)."""
        total = self.config.training.steps
        probes = ProbeLog(self.config, self.policy, self.folder, self.counters.update)
        tracker = Tracker(self.folder, self.counters.update)
        try:
            with TrainingProgress(console, total, self.counters.step) as progress:
                while self.counters.step < total:
                    row = self.update(progress)
                    tracker.log(row)
                    probes.log(row)
                    stop = stop_asked() or self.counters.step >= total
                    if stop or self.counters.update % self.config.training.checkpoint_every == 0:
                        self.save()
                    self._check_entropy()
                    if stop and self.counters.step < total:
                        return False
        finally:
            tracker.close()
            self.envs.close()
        return True

    def update(self, progress: TrainingProgress) -> dict[str, Any]:
        """Collect one rollout and learn from it.

        Returns:
            The figures of this update.
        """
        config, started = self.config, time.monotonic()
        rollout, episodes, self.memory = collect(
            self.policy,
            self.envs,
            config.training.steps_per_update,
            memory=self.memory,
            generator=self.generators["act"],
            reward_scale=config.env.reward_scale,
            bootstrap=self.algorithm.gamma if config.env.bootstrap_truncated else None,
            on_step=progress.advance,
        )
        figures = self.algorithm.update(
            self.policy,
            rollout,
            generator=self.generators["learn"],
            remaining=1 - self.counters.step / config.training.steps,
        )
        seconds = time.monotonic() - started
        self._count(len(rollout), episodes, seconds, figures)
        progress.finish_update(episodes)
        return {
            "update": self.counters.update,
            "step": self.counters.step,
            "seconds": round(self.counters.seconds, 3),
            "steps_per_second": round(len(rollout) / seconds, 1),
            **_summarise(episodes),
            "episodes": self.counters.episodes,
            **figures,
        }

    def save(self) -> None:
        """Write a checkpoint of everything that the run needs to go on to the last bit."""
        training = self.config.training
        checkpoint.save(
            self.folder / "checkpoints", self.counters.update, self._write, training.keep_checkpoints
        )

    def _write(self, folder: Path) -> None:
        self.policy.save_pretrained(folder)
        checkpoint.save_optimizer(self.algorithm.optimizer, folder / "optimizer.safetensors")
        checkpoint.save_random_states(self.generators, folder / "random.safetensors")
        if self.memory is not None:
            save_file({"memory": self.memory.contiguous()}, folder / "memory.safetensors")
        checkpoint.write_json(folder / "algorithm.json", self.algorithm.state_dict())
        state = {"counters": asdict(self.counters), "envs": self.envs.state_dict()}
        checkpoint.write_json(folder / "run.json", state)

    def _load(self, folder: Path) -> None:
        state = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        self.counters = Counters(**state["counters"])
        checkpoint.load_optimizer(self.algorithm.optimizer, folder / "optimizer.safetensors")
        self.algorithm.load_state_dict(json.loads((folder / "algorithm.json").read_text(encoding="utf-8")))
        self.envs.load_state_dict(state["envs"])
        if self.memory is not None:
            self.memory = load_file(folder / "memory.safetensors")["memory"]
        checkpoint.load_random_states(self.generators, folder / "random.safetensors")

    def _count(self, steps: int, episodes: list[Episode], seconds: float, figures: dict[str, float]) -> None:
        counters = self.counters
        counters.update += 1
        counters.step += steps
        counters.episodes += len(episodes)
        counters.seconds += seconds
        if not episodes:
            return  # nothing says whether the policy's certainty is deserved
        success = sum(e.success for e in episodes) / len(episodes)
        certain = figures.get("entropy", 1.0) < self.config.training.entropy_floor
        failing = success < _SUCCESS_THAT_MAY_BE_CERTAIN
        counters.low_entropy_updates = counters.low_entropy_updates + 1 if certain and failing else 0

    def _check_entropy(self) -> None:
        if self.counters.low_entropy_updates >= _LOW_ENTROPY_UPDATES:
            raise RunError(
                f"the policy's entropy was below training.entropy_floor={self.config.training.entropy_floor} for "
                f"{_LOW_ENTROPY_UPDATES} updates while episodes still fail: it no longer explores. Begin again "
                "with a higher algorithm.args.entropy_coefficient or a lower learning_rate, or set "
                "training.entropy_floor=0 to go on all the same"
            )


def _summarise(episodes: list[Episode]) -> dict[str, float | int | None]:
    """Figures of the episodes that ended in an update; None where there was none."""
    returns = np.array([e.episode_return for e in episodes])
    if not episodes:
        names = ("return_mean", "return_std", "return_min", "return_max", "success_rate", "episode_length")
        return dict.fromkeys(names)
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "success_rate": float(np.mean([e.success for e in episodes])),
        "episode_length": float(np.mean([len(e.actions) for e in episodes])),
    }


@contextmanager
def _stop_signals(console: Console) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM end the run after the present update; a second one ends it at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print("finishing this update, then stopping; once more to stop at once", highlight=False)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
