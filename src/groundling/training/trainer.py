"""A run: collect, learn, log, checkpoint, and again; resumed from wherever it was stopped."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.on_policy import OnPolicy
from groundling.algorithms.optimisation import share_of_rate
from groundling.algorithms.rollout import Rollout
from groundling.config.compose import recorded
from groundling.config.schema import Config
from groundling.errors import ConfigError, RunError, foreign
from groundling.io.documents import read_object
from groundling.io.redaction import shareable
from groundling.io.row_files import Log, ValidationListener, check_digest, digest_of
from groundling.policies.policy import Policy
from groundling.runtime.processes import Processes
from groundling.training import checkpoint, optimizer_state
from groundling.training.build import (
    in_steps,
    make_algorithm,
    make_policy,
    make_shards,
    world_of,
)
from groundling.training.folder import SETTINGS_FILE, write_settings
from groundling.training.progress import TrainingProgress
from groundling.training.samples import SampleLog
from groundling.training.shaping import ShapedReturns
from groundling.training.tracking import METRICS, Tracker, TrackioLog, WandbLog, read_metrics
from groundling.worlds.collector import Finished, summarise

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


def _checkpoint_every(folder: Path, config: Config) -> int:
    """After how many updates the run in ``folder`` wrote its first checkpoint, which is not to be had again now."""
    path = folder / SETTINGS_FILE
    every = recorded(path)["training"]["checkpoint_every"] if path.exists() else None
    return every if isinstance(every, int) else config.training.checkpoint_every


class Trainer:
    """A run's parts and where it stands. Of several processes, each steps its share of the envs.

    Args:
        config: The run's.
        folder: The run's, opened.
        warn: Called with warnings.
        processes: Those that share the work; None: this one alone.
        start: As of `make_policy`.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        warn: Callable[[str], None],
        processes: Processes | None = None,
        start: Path | None = None,
    ) -> None:
        self.config, self.folder, self.processes = config, folder, processes or Processes()
        self._warn = warn if self.processes.is_main else lambda text: None
        self._settings = asdict(config)  # as they are kept
        latest = self.processes.from_main(lambda: checkpoint.latest(folder / "checkpoints", warn))
        if latest is None and len(read_metrics(folder)) > _checkpoint_every(folder, config):
            raise RunError(
                f"{folder} holds metrics of a run but no checkpoint to go on from: bring one back, or set "
                "run_dir to a new folder to begin again"
            )
        num_rows = config.world.num_rows
        if num_rows < self.processes.size:
            key = f"world.{config.world.ROWS}"
            raise ConfigError(f"{key}={num_rows} is too few for {self.processes.size} processes")
        if config.model.fsdp and self.processes.size == 1:
            raise ConfigError(
                "model.fsdp=true deals the layers out over several processes, and this is one: start it with torchrun "
                "--nproc-per-node N -m groundling train …; one process can begin a new run from its last checkpoint "
                "(model.path=RUN/checkpoints/NNNNNN run_dir=NEW model.fsdp=false)"
            )
        self.counters = Counters()
        self.generators = {
            name: torch.Generator().manual_seed(2 * config.seed + i)
            for i, name in enumerate(("act", "learn"))
        }
        set_seed(config.seed)  # Python, NumPy and torch, for whatever draws from the global generators
        self.world = world_of(config, latest)
        self.policy: Policy = make_policy(
            config.policy, config.model, config.algorithm, self.world, learns=True, start=start
        )
        self.shards = make_shards(config.model, config.algorithm, self.policy, self.processes)
        self.algorithm: Algorithm = make_algorithm(config.algorithm, self.policy, self.processes)
        self._optimizer_settings = optimizer_state.settings_of(self.algorithm.optimizer)  # as it was made
        self.algorithm.keep_in(folder)
        self.local_rows = self.processes.share(num_rows)  # the envs, or texts, of this process
        self.collector = self.world.collector(self.policy, self.algorithm, self.local_rows)
        self.shaped = ShapedReturns(num_rows)
        self._digest: str | None = None
        """Of the rows of figures up to the checkpoint that it goes on from."""
        try:
            self.config = replace(config, training=in_steps(config.training, self.collector))
            if latest is not None:
                self._load(latest)
            if self.shards is not None:
                self.shards.bring_together()
        except BaseException:  # its envs may be processes, and a study goes on with the next run
            self.collector.close()
            raise

    def loop(self, console: Console, stop_asked: Callable[[], bool]) -> bool:
        """Update until all steps are taken (True) or a stop is asked for (False)."""
        total = self.config.training.steps
        with ExitStack() as stack:
            stack.callback(self.collector.close)
            logs: list[Log] = []
            self.processes.from_main(lambda: logs.extend(self._begin(stack)))
            update = self.counters.update
            begins = f"resuming after update {update} from" if update else "training in"
            console.print(f"{begins} {self.folder}", highlight=False)
            progress = stack.enter_context(TrainingProgress(console, total, self.counters.step))
            while self.counters.step < total:
                row = self.update(progress)
                progress.phase("measuring")
                for log in logs:
                    log.log(row)
                stop = any(self.processes.gather(stop_asked())) or self.counters.step >= total
                if stop or self.counters.update % self.config.training.checkpoint_every == 0:
                    progress.phase("saving")
                    self.save()
                self._check_entropy(row)
                if stop and self.counters.step < total:
                    return False
        return True

    def _begin(self, stack: ExitStack) -> list[Log]:
        """What `_logs` gives; now that nothing is left that could be refused, the folder is the run's."""
        logs = self._logs(stack)
        write_settings(self.folder, self._settings)
        checkpoint.remove_partial(self.folder / "checkpoints")
        return logs

    def _logs(self, stack: ExitStack) -> list[Log]:
        """Who is told of every update; what they hold open is closed with ``stack``."""
        config, update = self.config, self.counters.update
        if self._digest is not None:
            check_digest(self.folder / METRICS, update, self._digest)
        tracker = Tracker(self.folder, update)
        stack.callback(tracker.close)
        logs: list[Log] = [tracker, SampleLog(self.collector, self.folder, update, config.training.steps)]
        listeners: list[ValidationListener] = [tracker]
        if config.training.wandb is not None:
            name = f"{config.name}-seed{config.seed}"
            wandb = WandbLog(config.training.wandb, name, shareable(asdict(config)), self.folder)
            stack.callback(wandb.close)
            logs.append(wandb)
            listeners.append(wandb)
        if config.training.trackio is not None:
            name = f"{config.name}-seed{config.seed}-{self.folder.resolve().name}"
            trackio = TrackioLog(config.training.trackio, name, shareable(asdict(config)))
            stack.callback(trackio.close)
            logs.append(trackio)
            listeners.append(trackio)
        last_step = config.training.steps
        return [
            *logs,
            *self.world.logs(self.policy, self.algorithm, self.folder, update, last_step, listeners),
        ]

    def update(self, progress: TrainingProgress) -> dict[str, Any]:
        """Collect one rollout and learn from it.

        Returns:
            The figures of this update.
        """
        config, started = self.config, time.monotonic()
        algorithm, policy = f"algorithm {config.algorithm.id!r}", f"policy {config.policy.id!r}"
        remaining = self.collector.remaining = 1 - self.counters.step / config.training.steps
        progress.phase("collecting")
        local_rollout, local_episodes = self.collector.collect(
            self.policy,
            generator=self.generators["act"],
            on_step=lambda transitions: progress.advance(transitions * self.processes.size),
        )
        gathered = self.processes.gather((local_rollout, local_episodes, self.collector.incidents()))
        rollout = Rollout.beside([r for r, _, _ in gathered])
        episodes = [e for _, finished, _ in gathered for e in finished]
        incidents = {name: sum(counts[name] for _, _, counts in gathered) for name in gathered[0][2]}
        shaped = {}
        if rollout.kl is not None and not rollout.sequences and isinstance(self.algorithm, OnPolicy):
            shaped = self.shaped.add(rollout, self.algorithm.kl.rewards(rollout))
        progress.phase("learning")
        with (
            nullcontext() if self.shards is None else self.shards.apart(),
            foreign(algorithm),
        ):
            learnt = self.algorithm.update(
                self.policy,
                rollout,
                generator=self.generators["learn"],
                remaining=remaining,
            )
        figures = _figures_of(learnt, algorithm)
        for name, value in figures.items():
            if not math.isfinite(value):
                raise RunError(
                    f"{name} became {value}: the run stops before its weights, which may be spoilt, are kept. Begin "
                    "again from the last checkpoint with a lower learning rate, in float32"
                )
        seconds = time.monotonic() - started
        self._count(rollout.num_transitions, episodes, seconds, figures)
        parts = rollout.part_means()
        pays = "env" in self.world.spec.evidence  # then the return is the world's own
        beside = {name: value for name, value in parts.items() if pays and name != "reward/env"}
        progress.finish_update(episodes, self.counters.step, beside)
        row: dict[str, Any] = {
            "update": self.counters.update,
            "step": self.counters.step,
            "seconds": round(self.counters.seconds, 3),
            "steps_per_second": round(rollout.num_transitions / seconds, 1),
            **summarise(episodes),
            "episodes": self.counters.episodes,
            **incidents,
            **parts,
            **rollout.turn_means(),
        }
        with foreign(policy):
            acted = self.policy.figures()
        of_policy = _figures_of(acted, policy)
        present = row.keys() | shaped.keys()
        for giver, given in ((policy, of_policy), (algorithm, figures)):
            if doubled := sorted(present & given.keys()):
                raise RunError(
                    f"the {giver} gives a figure called {doubled[0]}, which the run has already: give it another name"
                )
            present |= given.keys()
        return row | of_policy | shaped | figures

    def save(self) -> None:
        """Write a checkpoint from which a run of any number of processes goes on, of as many to the last bit."""
        envs = [state for states in self.processes.gather(self.collector.state_dict()) for state in states]
        tensors = self.processes.gather(self.collector.tensors())
        optimizer = self.algorithm.optimizer
        moments = optimizer_state.optimizer_tensors(optimizer, self.processes.is_main)
        settings = optimizer_state.changed_settings(optimizer, self._optimizer_settings)
        self.processes.from_main(
            lambda: checkpoint.save(
                self.folder / "checkpoints",
                self.counters.update,
                lambda partial: self._write(partial, envs, tensors, moments, settings),
                self.config.training.keep_checkpoints,
            )
        )

    def _write(
        self,
        folder: Path,
        envs: list[dict[str, Any]],
        tensors: list[dict[str, Tensor]],
        moments: dict[str, Tensor],
        settings: list[dict[str, Any]],
    ) -> None:
        self.policy.save_pretrained(folder)
        optimizer_state.save_optimizer(moments, settings, folder / "optimizer.safetensors")
        checkpoint.save_random_states(self.generators, folder / "random.safetensors")
        whole = {name: torch.cat([part[name] for part in tensors]) for name in tensors[0]}
        save_file(whole, folder / "collector.safetensors")
        self.collector.save_shared(folder)
        checkpoint.write_json(folder / "algorithm.json", self.algorithm.state_dict())
        if kept := self.algorithm.tensors():
            save_file(kept, folder / "algorithm.safetensors")
        checkpoint.write_json(
            folder / "run.json",
            {
                "counters": asdict(self.counters),
                "length": {"epochs": self.config.training.epochs, "steps": self.config.training.steps},
                "envs": envs,
                "shaped": self.shaped.sums.tolist(),
                "versions": checkpoint.versions(),
                "rows_sha256": digest_of(self.folder / METRICS, self.counters.update),
            },
        )

    def _load(self, folder: Path) -> None:
        fitting = checkpoint.fitting
        with fitting(folder, "run.json"):
            state = read_object(folder / "run.json")
            checkpoint.check_counters(state["counters"])
            self.counters = Counters(**state["counters"])
            self._digest = state.get("rows_sha256")
            self._warn_of_schedule(int(state.get("length", {}).get("steps", 0)))
            self.shaped.sums[:] = state.get("shaped", 0.0)
            if len(envs := list(state["envs"])) != self.config.world.num_rows:
                raise ValueError(f"{len(envs)} envs or texts, expected {self.config.world.num_rows}")
        with fitting(folder, "optimizer.safetensors"):
            optimizer_state.load_optimizer(self.algorithm.optimizer, folder / "optimizer.safetensors")
        with fitting(folder, "algorithm.json"):
            self.algorithm.load_state_dict(read_object(folder / "algorithm.json"))
        if (folder / "algorithm.safetensors").exists():
            with fitting(folder, "algorithm.safetensors"):
                self.algorithm.load_tensors(load_file(folder / "algorithm.safetensors"))
        with fitting(folder, "run.json"):
            self.collector.load_state_dict(envs[self.local_rows])
        with fitting(folder, "collector.safetensors"):
            tensors = load_file(folder / "collector.safetensors")
            for name, present in self.collector.tensors().items():
                if tensors[name].shape[1:] != present.shape[1:] or len(tensors[name]) != len(envs):
                    raise ValueError(f"{name} has the shape {tuple(tensors[name].shape)}")
            # Copied to where PyTorch puts tensors: products round by the addresses of what they multiply.
            local = {name: whole[self.local_rows].clone() for name, whole in tensors.items()}
            self.collector.load_tensors(local)
        with fitting(folder, "what the world and its rewards keep"):
            self.collector.load_shared(folder)
        with fitting(folder, "random.safetensors"):
            checkpoint.load_random_states(self.generators, folder / "random.safetensors")

    def _warn_of_schedule(self, steps_before: int) -> None:
        """Report a learning rate that jumps because ``training.steps`` changed since the checkpoint."""
        step, steps, algorithm = self.counters.step, self.config.training.steps, self.algorithm
        schedule = getattr(algorithm, "learning_rate_schedule", None)
        if schedule is None or not 0 < step <= min(steps, steps_before):
            return
        rate, warmup = getattr(algorithm, "learning_rate", 0.0), getattr(algorithm, "warmup", 0.0)
        before, now = (
            rate * share_of_rate(schedule, warmup, 1 - step / total) for total in (steps_before, steps)
        )
        if not math.isclose(before, now):
            self._warn(
                f"training.steps changed from {steps_before} to {steps}, so the {schedule} schedule jumps from a "
                f"learning rate of {before:.3g} to {now:.3g} at step {step}; training may lose what it had reached. "
                f"One run of {steps} steps in a new folder (run_dir=NEW) has no such jump"
            )

    def _count(self, steps: int, episodes: list[Finished], seconds: float, figures: dict[str, float]) -> None:
        counters = self.counters
        counters.update += 1
        counters.step += steps
        counters.episodes += len(episodes)
        counters.seconds += seconds
        if not episodes:
            return  # nothing says whether the policy's certainty is deserved
        if any(e.success is None for e in episodes):
            return  # this world knows no failure
        success = sum(bool(e.success) for e in episodes) / len(episodes)
        certain = figures.get("entropy", 1.0) < self.world.entropy_floor
        failing = success < _SUCCESS_THAT_MAY_BE_CERTAIN
        counters.low_entropy_updates = counters.low_entropy_updates + 1 if certain and failing else 0

    def _check_entropy(self, row: Mapping[str, Any]) -> None:
        floor = self.world.entropy_floor
        # A run that is resumed with a lower floor brings the counter of the higher one.
        low = row.get("entropy", 1.0) < floor
        if low and self.counters.low_entropy_updates >= _LOW_ENTROPY_UPDATES:
            advice = "begin again with a higher algorithm.args.entropy_coefficient or a lower learning_rate"
            since = f"for {_LOW_ENTROPY_UPDATES} updates while episodes still fail: it no longer explores"
            # What is certain before it has learnt anything is not mended by learning less.
            if self.counters.low_entropy_updates >= self.counters.update:
                advice = self.policy.exploration_advice() or advice
                since = "from the first update on, while episodes fail: it never explored"
            raise RunError(
                f"the policy's entropy was below world.entropy_floor={floor} {since}. To mend it, {advice}; or set "
                "world.entropy_floor=0 to go on all the same"
            )


def _figures_of(update: Any, giver: str) -> dict[str, float]:
    """Figures as JSON knows them, out of numbers of torch and NumPy, too.

    Args:
        update: What an algorithm or a policy, maybe of the user's, gives of an update.
        giver: Which one, for messages.

    Raises:
        RunError: it is no mapping of texts to numbers.
    """
    if not isinstance(update, Mapping):
        raise RunError(
            f"the {giver} gives {update!r:.80} as the figures of an update, expected a mapping of names to numbers: "
            "return one such as {'loss': 0.5}, or {} where there is nothing to report"
        )
    figures = dict[str, float]()
    for name, value in update.items():
        if not isinstance(name, str):
            raise RunError(f"the {giver} gives a figure called {name!r:.80}, expected a text: name it by one")
        try:
            if isinstance(value, str | bytes | bytearray):  # which float would read
                raise TypeError
            figures[name] = value if isinstance(value, int | float) else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            shown = " ".join(repr(value).split())
            raise RunError(
                f"the {giver} gives the figure {name} as {shown:.80}, expected a number: give one such as 0.5, of "
                "several their mean, or leave it out"
            ) from error
    return figures
