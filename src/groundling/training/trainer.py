"""A run's training loop, which collects, learns, logs, saves, and resumes from the last checkpoint."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from rich.console import Console
from safetensors.torch import load_file, save_file

from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.on_policy import OnPolicy
from groundling.algorithms.optimisation import settings_of
from groundling.algorithms.rollout import Rollout
from groundling.config.facts import shareable
from groundling.config.schema import Config
from groundling.errors import ConfigError, RunError, foreign, warn_caller
from groundling.io.documents import read_object
from groundling.io.row_files import Log, RowFile, ValidationListener, check_digest, digest_of
from groundling.lm.load.model_files import fingerprint
from groundling.policies.policy import Policy
from groundling.registry import source_digests
from groundling.runtime.processes import Processes
from groundling.training import checkpoint, optimizer_state
from groundling.training.build import make_algorithm, make_policy, world_of
from groundling.training.checkpoint import fitting, load_random_states, save_random_states, write_json, write_settings
from groundling.training.diagnosis import FILE, UPDATES, DiagnosisLog, measure
from groundling.training.tracking import (
    METRICS,
    Counters,
    OnlineLog,
    SampleLog,
    ShapedReturns,
    Tracker,
    TrainingProgress,
    checked_figures,
    read_metrics,
    trackio_log,
    wandb_log,
)
from groundling.worlds.episode import Episode, summarise
from groundling.worlds.protocols import TrainingMeasures


class Trainer:
    """The components of a run and its progress. With several processes, each one steps its share of the envs."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        warn: Callable[[str], None],
        processes: Processes | None = None,
        start: Path | None = None,
    ) -> None:
        self.config, self.folder, self.processes = config, folder, processes or Processes()
        self.warn = warn if self.processes.is_main else lambda text: None
        self._settings = config.model_dump()  # as written to config.yaml
        latest = self.processes.from_main(lambda: self._find_checkpoint())
        world, size = config.world, self.processes.size
        if world.num_rows < size:
            raise ConfigError(f"world.{world.ROWS}={world.num_rows} is too few for {size} processes: each needs one")
        if config.model.fsdp and size == 1:
            raise ConfigError(
                "model.fsdp=true shards the layers over several processes, but there is only one: use torchrun "
                "--nproc-per-node N -m groundling train …"
            )
        self._start: dict[str, str] = {}  # `fingerprint` of the initial model, from the checkpoint
        self.counters = Counters()
        self.generators = {
            name: torch.Generator().manual_seed(2 * config.seed + i) for i, name in enumerate(("act", "learn"))
        }
        set_seed(config.seed)  # the global generators of Python, NumPy and torch, for components that use them
        self.world = world_of(config, latest)
        self.policy: Policy = make_policy(
            config.policy, config.model, config.algorithm, self.world, learns=True, start=start
        )
        self.shards = None
        if config.model.fsdp:
            from groundling.training.optimizer_state import shard  # imports torch.distributed.fsdp

            self.shards = shard(config.model, config.algorithm.id, self.policy, self.processes)
        self.algorithm: Algorithm = make_algorithm(config.algorithm, self.policy, self.processes)
        self.initial_settings = settings_of(self.algorithm.optimizer)
        self.algorithm.use_folder(folder)
        self.local_rows = self.processes.share(config.world.num_rows)  # the envs or texts of this process
        self.collector = self.world.collector(self.policy, self.algorithm, self.local_rows)
        self.shaped = ShapedReturns(config.world.num_rows)
        self.diagnosis: DiagnosisLog | None = None  # only in the main process
        self.rows_digest: str | None = None  # Digest of the metrics up to the checkpoint to resume from
        try:
            if (epochs := config.training.epochs) is not None:
                training = config.training.model_copy(update={"steps": self.collector.in_passes(epochs)[0]})
                self.config = config.model_copy(update={"training": training})
            if latest is not None:
                self._load(latest)
            if self.shards is not None:
                self.shards.gather()
        except BaseException:  # stop env processes, since a study continues with the next run
            self.collector.close()
            raise

    def loop(self, console: Console, stop_asked: Callable[[], bool]) -> bool:
        """Train until all steps are taken (return True) or a stop is requested (return False)."""
        total = self.config.training.steps
        with ExitStack() as stack:
            stack.callback(self.collector.close)
            logs: list[Log] = []
            self.processes.from_main(lambda: logs.extend(self._begin(stack, console)))
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
                self.counters.check_entropy(row.get("entropy", 1.0), self.world.entropy_floor, self.policy)
                if stop and self.counters.step < total:
                    return False
        return True

    def update(self, progress: TrainingProgress) -> dict[str, Any]:
        """Collect one rollout, learn from it, and return the metrics."""
        started = time.monotonic()
        progress.phase("collecting")
        rollout, episodes, incidents = self._collect(progress)
        shaped = {}
        if rollout.kl is not None and not rollout.sequences and isinstance(self.algorithm, OnPolicy):
            shaped = self.shaped.add(rollout, self.algorithm.kl.rewards(rollout))
        if self.diagnosis is not None and self.shards is None and self.counters.update < UPDATES:
            self.diagnosis.measures = measure(self.policy, rollout, self.world.spec.num_actions)
        progress.phase("learning")
        algorithm, policy = f"algorithm {self.config.algorithm.id!r}", f"policy {self.config.policy.id!r}"
        figures = self._learn(rollout, algorithm)
        seconds = time.monotonic() - started
        self.counters.update += 1
        self.counters.step += rollout.num_transitions
        self.counters.episodes += len(episodes)
        self.counters.seconds += seconds
        self.counters.count_entropy(figures.get("entropy", 1.0), self.world.entropy_floor, episodes)
        parts = rollout.part_means()
        # The displayed return is the env's if it provides a reward; the progress bar also shows the other rewards.
        others = {k: v for k, v in parts.items() if "env" in self.world.spec.evidence and k != "reward/env"}
        others |= {name: figures[name] for name in ("accuracy",) if name in figures}  # when learning preferences
        if not self.counters.episodes and not {"accuracy", "probability"} & figures.keys():  # not when cloning
            others["no episode has ended, reward per step"] = rollout.rewards.mean().item()
        progress.finish_update(episodes, self.counters.step, others)
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
            acted = checked_figures(self.policy.figures(), policy)
        taken = row.keys() | shaped.keys()
        for giver, given in ((policy, acted), (algorithm, figures)):
            if doubled := sorted(taken & given.keys()):
                raise RunError(f"the {giver} reports a metric {doubled[0]}, which already exists: rename it")
            taken |= given.keys()
        return {**row, **acted, **shaped, **figures}

    def save(self) -> None:
        """Write a checkpoint; a run with the same number of processes resumes from it with bit-identical results."""
        envs = [state for states in self.processes.gather(self.collector.state_dict()) for state in states]
        gathered = self.processes.gather(self.collector.tensors())
        optimizer = self.algorithm.optimizer
        moments = optimizer_state.optimizer_tensors(optimizer, self.processes.is_main)
        settings = optimizer_state.changed_settings(optimizer, self.initial_settings)
        training = self.config.training

        def write(folder: Path) -> None:
            self.policy.save_pretrained(folder)
            optimizer_state.save_optimizer(moments, settings, folder / "optimizer.safetensors")
            save_random_states(self.generators, folder / "random.safetensors")
            whole = {name: torch.cat([part[name] for part in gathered]) for name in gathered[0]}
            save_file(whole, folder / "collector.safetensors")
            self.collector.save_shared(folder)
            write_json(folder / "algorithm.json", self.algorithm.state_dict())
            if tensors := self.algorithm.tensors():
                save_file(tensors, folder / "algorithm.safetensors")
            state = {
                "counters": asdict(self.counters),
                "length": {"epochs": training.epochs, "steps": training.steps},
                "envs": envs,
                "shaped": self.shaped.sums.tolist(),
                "versions": checkpoint.versions(),
                "sources": source_digests() | (self._start or fingerprint(self.config.model.path)),
                "rows_sha256": digest_of(self.folder / METRICS, self.counters.update),
            }
            write_json(folder / "run.json", state)

        self.processes.from_main(
            lambda: checkpoint.save(
                self.folder / "checkpoints", self.counters.update, write, training.keep_checkpoints
            )
        )

    def _find_checkpoint(self) -> Path | None:
        """Return the checkpoint to resume from; raise `RunError` if all are broken or have been lost."""
        latest = checkpoint.latest(self.folder / "checkpoints", self.warn)
        if latest is None and len(read_metrics(self.folder)) > self.config.training.checkpoint_every:
            lost = "contains a run's metrics but no checkpoint to resume from"
            raise RunError(f"{self.folder} {lost}: restore one, or set run_dir to a new folder to start again")
        return latest

    def _begin(self, stack: ExitStack, console: Console) -> list[Log]:
        """Claim the folder, and open the loggers that are called after each update; ``stack`` closes them."""
        config, update, last_step = self.config, self.counters.update, self.config.training.steps
        if self.rows_digest is not None:
            check_digest(self.folder / METRICS, update, self.rows_digest)
        tracker = Tracker(self.folder, update)
        stack.callback(tracker.close)
        logs: list[Log] = [tracker, SampleLog(self.collector, self.folder, update, last_step)]
        listeners: list[ValidationListener] = [tracker]
        measured = RowFile(self.folder / FILE, update) if update < UPDATES else None
        self.diagnosis = DiagnosisLog(self.config, self.folder, measured, console.print)
        logs.append(self.diagnosis)
        name, shared, online = f"{config.name}-seed{config.seed}", shareable(config.model_dump()), list[OnlineLog]()
        if config.training.wandb is not None:
            online.append(wandb_log(config.training.wandb, name, shared, self.folder))
        if config.training.trackio is not None:
            online.append(trackio_log(config.training.trackio, f"{name}-{self.folder.resolve().name}", shared))
        for one in online:
            stack.callback(one.close)
        logs += online
        listeners += online
        if isinstance(self.world, TrainingMeasures):
            logs += self.world.logs(self.policy, self.algorithm, self.folder, update, last_step, listeners)
        write_settings(self.folder, self._settings)
        # A process that was killed while saving may have left older or unfinished checkpoints.
        if update:
            checkpoint.delete_old(self.folder / "checkpoints", update, config.training.keep_checkpoints)
        return logs

    def _collect(self, progress: TrainingProgress) -> tuple[Rollout, list[Episode], dict[str, int]]:
        """Collect a rollout; return it with the finished episodes and incident counts of all processes."""
        self.collector.remaining = 1 - self.counters.step / self.config.training.steps
        local_rollout, local_episodes = self.collector.collect(
            self.policy,
            generator=self.generators["act"],
            on_step=lambda transitions: progress.advance(transitions * self.processes.size),
        )
        gathered = self.processes.gather((local_rollout, local_episodes, self.collector.incidents()))
        rollout = Rollout.concatenate([r for r, _, _ in gathered])
        episodes = [e for _, finished, _ in gathered for e in finished]
        incidents = {name: sum(counts[name] for _, _, counts in gathered) for name in gathered[0][2]}
        return rollout, episodes, incidents

    def _learn(self, rollout: Rollout, name: str) -> dict[str, float]:
        """Update the policy and return the algorithm's metrics; raise `RunError` if one is not finite."""
        with nullcontext() if self.shards is None else self.shards.sharded(), foreign(name):
            learnt = self.algorithm.update(
                self.policy, rollout, generator=self.generators["learn"], remaining=self.collector.remaining
            )
        figures = checked_figures(learnt, name)
        for key, value in figures.items():
            if not math.isfinite(value):
                advice = "start a new run from the last checkpoint with a lower learning rate, in float32"
                raise RunError(f"{key} became {value}, so the weights may be corrupted and are not saved: {advice}")
        return figures

    def _load(self, folder: Path) -> None:
        """Load everything but the weights, which the policy already has; raise `RunError` if a file does not match."""
        with fitting(folder, "run.json"):
            state = read_object(folder / "run.json")
            vars(self.counters).update(vars(Counters(**checkpoint.check_counters(state["counters"]))))
            self.rows_digest = state.get("rows_sha256")
            saved, model = state.get("sources", {}), fingerprint(self.config.model.path)
            sources, self._start = (source_digests() | model, {key: saved.get(key, model[key]) for key in model})
            if edited := [name for name in sources if saved.get(name, sources[name]) != sources[name]]:
                warn_caller(f"{', '.join(edited)} has changed since the checkpoint; continuing with the new version")
            self.shaped.sums[:] = state["shaped"]
            envs: list[dict[str, Any]] = list(state["envs"])
            if len(envs) != self.config.world.num_rows:
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
                    raise ValueError(f"{name} has an unexpected shape, {tuple(tensors[name].shape)}")
            # Copy to memory aligned by PyTorch, since the rounding of products depends on the alignment.
            local = {name: whole[self.local_rows].clone() for name, whole in tensors.items()}
            self.collector.load_tensors(local)
        with fitting(folder, "the state of the world and its rewards"):
            self.collector.load_shared(folder)
        with fitting(folder, "random.safetensors"):
            load_random_states(self.generators, folder / "random.safetensors")
