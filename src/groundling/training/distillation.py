"""Distil a reward model into a folder with metrics and checkpoints, from which an interrupted run resumes."""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from accelerate.utils import set_seed
from rich.console import Console
from rich.progress import Progress

from groundling.config.facts import shareable
from groundling.envs.text_generation.preferences import read_preferences
from groundling.errors import ConfigError
from groundling.fields import Ge, Gt, Lt, MayChangeOnResume
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import LOCK, is_unused, locked, write_atomically
from groundling.io.row_files import check_digest, digest_of
from groundling.judges.preferences import open_pairs
from groundling.judges.preferences.recording import in_context
from groundling.judges.reward_models import RewardModel, TableRewardModel, load_reward_model, reward_models
from groundling.judges.reward_models.distill import TrainingPairs, evaluate, normalize, train_epoch
from groundling.registry import ComponentConfig, check_bounds, declarations
from groundling.runtime.devices import find_device
from groundling.training import checkpoint, optimizer_state
from groundling.training.checkpoint import load_random_states, save_random_states
from groundling.training.tracking import METRICS, Tracker

_CONFIG = "config.json"


@dataclass
class DistillationConfig:
    """Settings of `groundling distill`; the defaults are those of Motif's command."""

    learning_rate: Annotated[float, Gt(0), Lt(math.inf)] = 1e-5
    """Adam's learning rate. The default is for half a million pairs; for ten thousand, 1e-4 to 1e-3 works better."""
    batch_size: Annotated[int, Gt(0)] = 1024  # Pairs per optimizer step
    epochs: Annotated[int, Gt(0)] = 10  # Passes over all training pairs
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Fraction of pairs held out for validation; a pair of captions is never in both sets."""
    seed: Annotated[int, Ge(0), Lt(2**31)] = 0  # For the split, the initial weights and the order of the pairs
    dataset: str = ""  # Folder with the preference pairs, or a file with chosen and rejected texts
    preferences: str = ""  # Name of the annotator whose labels are used; empty for a file
    model: ComponentConfig = field(default_factory=lambda: ComponentConfig(id="motif"))
    """The reward model's id and arguments."""
    device: Annotated[str, MayChangeOnResume] = "auto"  # cpu, cuda, or auto for an accelerator if there is one
    keep_checkpoints: Annotated[int, Ge(1), MayChangeOnResume] = 1  # Number of latest checkpoints to keep

    def __post_init__(self) -> None:
        check_bounds(self, "")


def read_pairs(config: DistillationConfig) -> TrainingPairs:
    """Read the dataset's annotated pairs; raise `ConfigError` if there are no preferences."""
    path, name = Path(config.dataset), config.preferences
    if path.is_file():
        return _chosen_texts(path)
    pairs = open_pairs(path)
    return TrainingPairs.of(pairs.segments(), pairs.preferences(name), pairs.soft_preferences(name))


def subject_of(dataset: str) -> str:
    """Return the kind of world that a dataset's pairs come from; files contain pairs of texts."""
    return "writing" if Path(dataset).is_file() else open_pairs(dataset).world


def _chosen_texts(path: Path) -> TrainingPairs:
    """Read pairs of chosen and rejected texts in TRL's formats; as in rewards, each text includes its prompt."""
    samples = list(read_preferences(path))
    if not samples:
        raise ConfigError(f"{path} has no rows: expected pairs of chosen and rejected texts")
    for sample in samples:
        if not (sample.references and sample.rejected):
            raise ConfigError(f"{sample.id} has only one labelled text: a reward model needs chosen and rejected ones")
    pairs = [(in_context(s.prompt, s.references[0]), in_context(s.prompt, s.rejected[0])) for s in samples]
    return TrainingPairs.of([([one], [other]) for one, other in pairs], np.zeros(len(pairs), np.int8))


def distill(config: DistillationConfig, output: Path, console: Console, warn: Callable[[str], None]) -> dict[str, Any]:
    """Train or resume the reward model of ``config`` in ``output``; return the last epoch's metrics."""
    pairs = read_pairs(config)
    is_other = output.is_dir() and not is_unused(output)
    if (output.exists() and not output.is_dir()) or (is_other and not (output / _CONFIG).exists()):
        raise ConfigError(f"{output} was not created by `groundling distill`: choose a new folder for the model")
    with locked(output / LOCK, f"is distilling into {output}"):
        _write_config(output, config, pairs)
        run = DistillationRun(config, pairs, output, warn)
        console.print(
            f"{len(run.train):,} training pairs, {len(run.validation):,} validation pairs; "
            f"{len(pairs.captions):,} distinct captions out of {int((pairs.indices >= 0).sum()):,}",
            highlight=False,
        )
        row = run.loop(console)
        run.model.save(output, {"world": subject_of(config.dataset), **run.about(row)})
    return row


class DistillationRun:
    def __init__(
        self, config: DistillationConfig, pairs: TrainingPairs, folder: Path, warn: Callable[[str], None]
    ) -> None:
        self.config, self.folder = config, folder
        self.train, self.validation = pairs.split(config.validation_fraction, config.seed)
        set_seed(config.seed)
        self.generators = {"order": torch.Generator().manual_seed(config.seed)}
        self.counters: dict[str, Any] = {"epoch": 0, "step": 0, "seconds": 0.0}
        self.row: dict[str, Any] = {}
        latest = checkpoint.latest(folder / "checkpoints", warn)
        self.resumed = latest is not None
        device = find_device(config.device)
        self.model: RewardModel = (
            reward_models.create(config.model.id, **config.model.args).to(device)
            if latest is None
            else load_reward_model(latest, device)
        )
        self.epochs = 1 if isinstance(self.model, TableRewardModel) else config.epochs  # a table needs only one
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trainable, lr=config.learning_rate) if trainable else None
        if latest is not None:
            self._load(latest)

    def loop(self, console: Console) -> dict[str, Any]:
        """Train for the remaining epochs, and save a checkpoint after each."""
        tracker = Tracker(self.folder, self.counters["epoch"] if self.resumed else -1)
        checkpoint.delete_old(self.folder / "checkpoints", self.counters["epoch"], self.config.keep_checkpoints)
        if self.resumed:
            console.print(f"resuming after epoch {self.counters['epoch']}", highlight=False)
        else:
            tracker.log({"update": 0, "step": 0, **self._validate()})
        bar = Progress(console=console, disable=not console.is_terminal)
        try:
            with bar:
                total = self.epochs * len(self.train)
                task = bar.add_task("", total=total, completed=self.counters["epoch"] * len(self.train))
                while self.counters["epoch"] < self.epochs:
                    self.row = self.epoch(lambda pairs: bar.advance(task, pairs))
                    tracker.log(self.row)
                    checkpoints = self.folder / "checkpoints"
                    checkpoint.save(checkpoints, self.counters["epoch"], self._write, self.config.keep_checkpoints)
                    line = f"epoch {self.row['update']} · loss {self.row['train_loss']:.4f}"
                    if has_accuracy(self.row):
                        line += f" · held-out accuracy {self.row['validation_accuracy']:.3f}"
                    bar.update(task, description=line)
                    if not console.is_terminal:
                        console.print(line, highlight=False)
        finally:
            tracker.close()
        return self.row

    def epoch(self, on_batch: Callable[[int], None]) -> dict[str, Any]:
        """Train on each pair once; return the epoch's metrics."""
        started, counters = time.monotonic(), self.counters
        if isinstance(self.model, TableRewardModel):
            self.model.fit(self.train)
            loss = evaluate(self.model, self.train)["loss"]
            on_batch(len(self.train))
        else:
            assert self.optimizer is not None
            size, order = self.config.batch_size, self.generators["order"]
            loss = train_epoch(self.model, self.optimizer, self.train, size, order, on_batch)
            counters["step"] += math.ceil(len(self.train) / size)
        seconds = time.monotonic() - started
        counters["epoch"] += 1
        counters["seconds"] += seconds
        normalize(self.model, self.train)
        spread = self.model.normalization
        return {
            "update": counters["epoch"],
            "step": counters["step"],
            "seconds": round(counters["seconds"], 3),
            "pairs_per_second": round(len(self.train) / seconds, 1),
            "train_loss": loss,
            **self._validate(),
            **({"reward_mean": spread.mean, "reward_deviation": math.sqrt(spread.variance)} if spread else {}),
        }

    def about(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the settings and metrics that are saved with the model."""
        figures = {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in row.items()
            if key.startswith(("train_", "validation_"))
        }
        return {
            **shareable(_as_dict(self.config)),
            "training_pairs": len(self.train),
            "validation_pairs": len(self.validation),
            **figures,
        }

    def _validate(self) -> dict[str, float]:
        if not len(self.validation):
            return {}
        return {f"validation_{name}": value for name, value in evaluate(self.model, self.validation).items()}

    def _write(self, folder: Path) -> None:
        self.model.save(folder, self.about(self.row))
        if self.optimizer is not None:
            moments = optimizer_state.optimizer_tensors(self.optimizer)
            unchanged: list[dict[str, Any]] = [{} for _ in self.optimizer.param_groups]
            optimizer_state.save_optimizer(moments, unchanged, folder / "optimizer.safetensors")
        save_random_states(self.generators, folder / "random.safetensors")
        state = {
            "counters": self.counters,
            "row": self.row,
            "versions": checkpoint.versions(),
            "rows_sha256": digest_of(self.folder / METRICS, self.counters["epoch"] + 1),
        }
        checkpoint.write_json(folder / "run.json", state)

    def _load(self, folder: Path) -> None:
        with checkpoint.fitting(folder, "run.json"):
            state = read_object(folder / "run.json")
            self.counters = checkpoint.check_counters(state["counters"], ("epoch", "step", "seconds"))
            self.row = dict(state["row"])
            check_digest(self.folder / METRICS, self.counters["epoch"] + 1, state["rows_sha256"])
        with checkpoint.fitting(folder, "optimizer.safetensors"):
            if self.optimizer is not None:
                optimizer_state.load_optimizer(self.optimizer, folder / "optimizer.safetensors")
        with checkpoint.fitting(folder, "random.safetensors"):
            load_random_states(self.generators, folder / "random.safetensors")


def _as_dict(config: DistillationConfig) -> dict[str, Any]:
    return {**vars(config), "model": config.model.model_dump()}


def _write_config(folder: Path, config: DistillationConfig, pairs: TrainingPairs) -> None:
    """Write the configuration; raise `ConfigError` if the folder was created with different settings or pairs."""
    path = folder / _CONFIG
    digest = hashlib.sha256(json.dumps(pairs.captions).encode())
    for tensor in (pairs.indices, pairs.targets):
        digest.update(tensor.contiguous().numpy().data)
    facts = declarations(DistillationConfig)
    wanted = json.loads(json.dumps(shareable(_as_dict(config)))) | {"pairs": digest.hexdigest()[:16]}
    if path.exists() and (folder / "checkpoints").exists():
        present = shareable(read_object(path, SETTINGS))
        different = [
            f"{key}={present.get(key)!r} (now {wanted.get(key)!r})"
            for key in sorted({*present, *wanted})
            if present.get(key) != wanted.get(key) and MayChangeOnResume not in facts.get(key, ())
        ]
        if different:
            raise ConfigError(f"{folder} contains a reward model with {', '.join(different)}: choose a new folder")
    write_atomically(path, json.dumps(wanted, indent=1) + "\n")


def has_accuracy(row: dict[str, Any]) -> bool:
    """Return True if an epoch's metrics include an accuracy, that is, if some held-out pairs are not ties."""
    return not math.isnan(row.get("validation_accuracy", math.nan))
