"""Distillation: a judge's preferences become a reward model."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.errors import ConfigError, RunError
from groundling.judges.reward_models.calibration import accuracy, best_temperature, calibration_error
from groundling.judges.reward_models.losses import segment_means
from groundling.judges.reward_models.reward_model import Normalization, RewardModel, chunks
from groundling.judges.reward_models.training_pairs import TrainingPairs


@dataclass
class Distillation:
    """How a reward model is trained; the defaults are those of Motif's command."""

    learning_rate: float = 1e-5
    """Adam's step size, for half a million pairs; of ten thousand pairs 1e-3 to 1e-4 makes more."""
    batch_size: int = 1024
    """Pairs per optimizer step."""
    epochs: int = 10
    """How often all training pairs are gone through."""
    validation_fraction: float = 0.2
    """The share of pairs that are not trained on; a pair of captions is never on both sides."""
    seed: int = 0
    """Of the split, of the weights and of the order of the pairs."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        for name in ("learning_rate", "batch_size", "epochs"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be greater than 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.validation_fraction < 1:
            raise ConfigError(f"validation_fraction must lie in [0, 1), got {self.validation_fraction}: 0.2 is usual")
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed must lie in [0, 2**31), got {self.seed}")


def segment_scores(model: RewardModel, pairs: TrainingPairs) -> Tensor:
    """What the model says of each caption, computed once for each distinct one.

    A gather spreads them over the segments, so that the gradient of anything computed from them is that of the plain
    computation, which reads every caption of every pair.

    Returns:
        Float32 (len(pairs), 2, L), on the model's device, with gradients; anything past the end of a shorter segment.
    """
    captions, places = pairs.distinct()
    scores: Tensor = model(captions)  # (num_distinct,)
    return scores[places.to(scores.device)]


def train_epoch(
    model: RewardModel,
    optimizer: torch.optim.Optimizer,
    pairs: TrainingPairs,
    batch_size: int,
    generator: torch.Generator,
    on_batch: Callable[[int], None] = lambda _: None,
) -> float:
    """Go once through ``pairs`` in an order drawn from ``generator``, one optimizer step per batch.

    Args:
        on_batch: Called after each batch with the number of its pairs.

    Returns:
        The mean loss over the pairs, each at the weights of its batch.

    Raises:
        RunError: a loss became NaN or infinite; the step that would have spoilt the weights is not taken.
    """
    total = 0.0
    model.train()
    for rows in torch.randperm(len(pairs), generator=generator).split(batch_size):
        batch = pairs[rows]
        scores = segment_scores(model, batch)
        loss = model.loss(scores, batch.targets.to(scores.device), batch.mask().to(scores.device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if not math.isfinite(loss.item()):
            raise RunError(f"the loss became {loss.item()}: train with a lower learning_rate")
        optimizer.step()
        total += loss.item() * len(rows)
        on_batch(len(rows))
    model.mark_changed()
    return total / len(pairs)


@torch.no_grad()
def evaluate(model: RewardModel, pairs: TrainingPairs) -> dict[str, float]:
    """How well the model tells these pairs apart.

    Returns:
        ``loss`` (the model's own), ``accuracy`` and ``calibration_error`` on pairs that are no ties, the best
        ``temperature`` and the calibration error with it. The latter two are NaN without pairs that are no ties.
    """
    model.eval()
    captions, places = pairs.distinct()
    scores = torch.cat([model(chunk).float().cpu() for chunk in chunks(captions)])[places]
    means = segment_means(scores, pairs.mask())
    margins = means[:, 0] - means[:, 1]
    targets = pairs.targets[:, 0]
    temperature = best_temperature(margins, targets)
    return {
        "loss": model.loss(scores, pairs.targets, pairs.mask()).item(),
        "accuracy": accuracy(margins, targets),
        "calibration_error": calibration_error(margins, targets),
        "temperature": temperature,
        "calibration_error_at_temperature": calibration_error(margins / temperature, targets),
    }


@torch.no_grad()
def agreement(model: RewardModel, pairs: TrainingPairs) -> tuple[int, int]:
    """With how many of these pairs or labelled captions the model agrees, and how many there are; ties left out."""
    model.eval()
    captions, places = pairs.distinct()
    rewards = model.rewards(captions)[places]  # (N, 1 or 2, L)
    targets = pairs.targets[:, 0]
    decided = targets != 0.5
    if rewards.shape[1] == 1:
        agreeing = rewards[:, 0, 0] == targets
    else:
        means = segment_means(rewards, pairs.mask())
        agreeing = torch.sign(means[:, 0] - means[:, 1]) == torch.sign(targets - 0.5)
    return int(agreeing[decided].sum()), int(decided.sum())


def normalize(model: RewardModel, pairs: TrainingPairs) -> None:
    """Set ``model.normalization`` from its rewards of the training pairs' captions, unless these are labels."""
    model.eval()
    if model.gives_labels:
        return
    counts = pairs.counts()
    seen = counts > 0
    captions = [pairs.captions[place] for place in seen.nonzero()[:, 0].tolist()]
    model.normalization = Normalization.of(model.rewards(captions), counts[seen])
