"""A distillation's run: a folder with its metrics and checkpoints, resumed from wherever it was stopped."""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from accelerate.utils import set_seed
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from groundling.arguments import check_bounds
from groundling.errors import ConfigError
from groundling.fields import Ge
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import LOCK, holds_something, locked, write_atomically
from groundling.io.redaction import shareable
from groundling.io.row_files import check_digest, digest_of
from groundling.judges.preferences.opening import open_pairs
from groundling.judges.reward_models import (
    RewardModel,
    TableRewardModel,
    load_reward_model,
    reward_models,
)
from groundling.judges.reward_models.distill import Distillation, evaluate, normalize, train_epoch
from groundling.judges.reward_models.training_pairs import TrainingPairs
from groundling.registry import ComponentConfig
from groundling.runtime.devices import find_device
from groundling.training import checkpoint, optimizer_state
from groundling.training.tracking import METRICS, Tracker

_CONFIG = "config.json"
_MAY_CHANGE = ("device", "keep_checkpoints")


@dataclass
class DistillationConfig(Distillation):
    """What `groundling distill` can be told."""

    dataset: str = ""
    """The folder of preference pairs."""
    preferences: str = ""
    """Whose preferences: the annotator's name."""
    model: ComponentConfig = field(default_factory=lambda: ComponentConfig(id="motif"))
    """The reward model, by its id and arguments."""
    device: str = "auto"
    """cpu, cuda, or auto for an accelerator where there is one."""
    keep_checkpoints: Annotated[int, Ge(1)] = 1
    """How many of the latest epochs are kept beside the outcome."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self, "")


@dataclass
class Counters:
    """What a distillation has done so far."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


def read_pairs(config: DistillationConfig) -> TrainingPairs:
    """The dataset's annotated pairs.

    Raises:
        ConfigError: there is no such dataset or annotator, nothing is annotated, or nothing is preferred.
    """
    pairs, name = open_pairs(config.dataset), config.preferences
    return TrainingPairs.of(pairs.segments(), pairs.preferences(name), pairs.soft_preferences(name))


def distill(
    config: DistillationConfig,
    output: Path,
    console: Console,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Train, or go on training, the reward model that ``config`` describes, and write it into ``output``.

    Returns:
        The last epoch's figures, as ``output/metrics.jsonl`` holds them.

    Raises:
        GroundlingError: it cannot begin or go on; the last checkpoint stays.
    """
    pairs = read_pairs(config)
    if (output.exists() and not output.is_dir()) or (
        holds_something(output) and not (output / _CONFIG).exists()
    ):
        raise ConfigError(f"{output} holds something else: name a new folder for the reward model")
    with locked(output / LOCK, f"is distilling into {output}", warn):
        _claim(output, config, pairs)
        run = DistillationRun(config, pairs, output, warn)
        console.print(
            f"{len(run.train):,} pairs to train on, {len(run.validation):,} to validate on; "
            f"{len(pairs.captions):,} distinct captions of {int((pairs.indices >= 0).sum()):,}",
            highlight=False,
        )
        row = run.loop(console)
        run.model.save(output, {"world": open_pairs(config.dataset).world, **run.about(row)})
    return row


class DistillationRun:
    """A distillation's parts and where it stands."""

    def __init__(
        self, config: DistillationConfig, pairs: TrainingPairs, folder: Path, warn: Callable[[str], None]
    ) -> None:
        self.config, self.folder = config, folder
        self.train, self.validation = pairs.split(config.validation_fraction, config.seed)
        set_seed(config.seed)
        self.generators = {"order": torch.Generator().manual_seed(config.seed)}
        self.counters, self.row = Counters(), dict[str, Any]()
        latest = checkpoint.latest(folder / "checkpoints", warn)
        self.resumed = latest is not None
        device = find_device(config.device)
        self.model: RewardModel = (
            reward_models.create(config.model.id, **config.model.args).to(device)
            if latest is None
            else load_reward_model(latest, device)
        )
        # A table is made by counting, at once.
        self.epochs = 1 if isinstance(self.model, TableRewardModel) else config.epochs
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trainable, lr=config.learning_rate) if trainable else None
        if latest is not None:
            self._load(latest)

    def loop(self, console: Console) -> dict[str, Any]:
        """Train until all epochs are done; a checkpoint after each."""
        tracker = Tracker(self.folder, self.counters.epoch if self.resumed else -1)
        checkpoint.remove_partial(self.folder / "checkpoints")
        if self.resumed:
            console.print(f"resuming after epoch {self.counters.epoch}", highlight=False)
        else:
            tracker.log({"update": 0, "step": 0, **self._validate()})
        total = self.epochs * len(self.train)
        bar = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        try:
            with bar:
                task = bar.add_task("", total=total, completed=self.counters.epoch * len(self.train))
                while self.counters.epoch < self.epochs:
                    self.row = self.epoch(lambda pairs: bar.advance(task, pairs))
                    tracker.log(self.row)
                    self._save()
                    bar.update(task, description=_epoch_line(self.row))
                    if not console.is_terminal:
                        console.print(_epoch_line(self.row), highlight=False)
        finally:
            tracker.close()
        return self.row

    def epoch(self, on_batch: Callable[[int], None]) -> dict[str, Any]:
        """Go once through the training pairs.

        Returns:
            The figures of this epoch.
        """
        started, counters = time.monotonic(), self.counters
        if isinstance(self.model, TableRewardModel):
            self.model.fit(self.train)
            loss = evaluate(self.model, self.train)["loss"]
            on_batch(len(self.train))
        else:
            assert self.optimizer is not None
            size, order = self.config.batch_size, self.generators["order"]
            loss = train_epoch(self.model, self.optimizer, self.train, size, order, on_batch)
            counters.step += math.ceil(len(self.train) / size)
        seconds = time.monotonic() - started
        counters.epoch += 1
        counters.seconds += seconds
        normalize(self.model, self.train)
        spread = self.model.normalization
        return {
            "update": counters.epoch,
            "step": counters.step,
            "seconds": round(counters.seconds, 3),
            "pairs_per_second": round(len(self.train) / seconds, 1),
            "train_loss": loss,
            **self._validate(),
            **(
                {"reward_mean": spread.mean, "reward_deviation": math.sqrt(spread.variance)} if spread else {}
            ),
        }

    def about(self, row: dict[str, Any]) -> dict[str, Any]:
        """What the saved model's JSON tells a reader."""
        figures = {key: value for key, value in row.items() if key.startswith(("train_", "validation_"))}
        return {
            **shareable(asdict(self.config)),
            "training_pairs": len(self.train),
            "validation_pairs": len(self.validation),
            **{
                key: None if isinstance(value, float) and math.isnan(value) else value
                for key, value in figures.items()
            },
        }

    def _validate(self) -> dict[str, float]:
        if not len(self.validation):
            return {}
        return {f"validation_{name}": value for name, value in evaluate(self.model, self.validation).items()}

    def _save(self) -> None:
        checkpoint.save(
            self.folder / "checkpoints", self.counters.epoch, self._write, self.config.keep_checkpoints
        )

    def _write(self, folder: Path) -> None:
        self.model.save(folder, self.about(self.row))
        if self.optimizer is not None:
            moments = optimizer_state.optimizer_tensors(self.optimizer)
            unchanged: list[dict[str, Any]] = [{} for _ in self.optimizer.param_groups]
            optimizer_state.save_optimizer(moments, unchanged, folder / "optimizer.safetensors")
        checkpoint.save_random_states(self.generators, folder / "random.safetensors")
        state = {
            "counters": asdict(self.counters),
            "row": self.row,
            "versions": checkpoint.versions(),
            "rows_sha256": digest_of(self.folder / METRICS, self.counters.epoch + 1),
        }
        checkpoint.write_json(folder / "run.json", state)

    def _load(self, folder: Path) -> None:
        with checkpoint.fitting(folder, "run.json"):
            state = read_object(folder / "run.json")
            self.counters, self.row = Counters(**state["counters"]), dict(state["row"])
            if "rows_sha256" in state:
                check_digest(self.folder / METRICS, self.counters.epoch + 1, state["rows_sha256"])
        with checkpoint.fitting(folder, "optimizer.safetensors"):
            if self.optimizer is not None:
                optimizer_state.load_optimizer(self.optimizer, folder / "optimizer.safetensors")
        with checkpoint.fitting(folder, "random.safetensors"):
            checkpoint.load_random_states(self.generators, folder / "random.safetensors")


def _claim(folder: Path, config: DistillationConfig, pairs: TrainingPairs) -> None:
    """Write the configuration, if what stands there says the same of everything that is learnt.

    Raises:
        ConfigError: the folder holds what another configuration or other pairs have come to.
    """
    path = folder / _CONFIG
    wanted = json.loads(json.dumps(shareable(asdict(config)))) | {"pairs": _fingerprint(pairs)}
    if path.exists() and (folder / "checkpoints").exists():
        there = shareable(read_object(path, SETTINGS))
        different = [
            f"{key}={there.get(key)!r} (now {wanted.get(key)!r})"
            for key in sorted({*there, *wanted})
            if there.get(key) != wanted.get(key) and key not in _MAY_CHANGE
        ]
        if different:
            raise ConfigError(
                f"{folder} holds a reward model of {', '.join(different)}: name a new folder, or give the same "
                "command to go on"
            )
    write_atomically(path, json.dumps(wanted, indent=1) + "\n")


def _fingerprint(pairs: TrainingPairs) -> str:
    """What tells annotated pairs from others."""
    digest = hashlib.sha256()
    digest.update(json.dumps(pairs.captions).encode())
    for tensor in (pairs.indices, pairs.targets):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def has_accuracy(row: dict[str, Any]) -> bool:
    """Whether an epoch's figures tell an accuracy: pairs are held out, and some of these are no ties."""
    return not math.isnan(row.get("validation_accuracy", math.nan))


def _epoch_line(row: dict[str, Any]) -> str:
    held_out = f"held-out accuracy {row['validation_accuracy']:.3f} · " if has_accuracy(row) else ""
    return (
        f"epoch {row['update']} · loss {row['train_loss']:.4f} · {held_out}"
        f"{row['pairs_per_second']:,.0f} pairs/s"
    )
