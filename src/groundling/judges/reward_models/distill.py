"""Distillation: training a reward model on a judge's preferences."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from groundling.errors import RunError
from groundling.fields import Ge, Gt, Lt
from groundling.judges.reward_models.reward_model import (
    Normalization,
    RewardModel,
    accuracy,
    best_temperature,
    calibration_error,
    chunks,
    segment_means,
)
from groundling.judges.reward_models.training_pairs import TrainingPairs
from groundling.registry import check_bounds


@dataclass
class Distillation:
    """Settings for training a reward model; defaults are those of Motif's command."""

    learning_rate: Annotated[float, Gt(0), Lt(math.inf)] = 1e-5
    """Adam's step size for half a million pairs; for ten thousand pairs 1e-3 to 1e-4 is better."""
    batch_size: Annotated[int, Gt(0)] = 1024  # Pairs per optimizer step
    epochs: Annotated[int, Gt(0)] = 10  # Passes over all training pairs
    validation_fraction: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of held-out pairs; a pair of captions is never in both sets."""
    seed: Annotated[int, Ge(0), Lt(2**31)] = 0  # Of the split, the weights and the order of the pairs

    def __post_init__(self) -> None:
        check_bounds(self, "")


def segment_scores(model: RewardModel, pairs: TrainingPairs) -> Tensor:
    """Score each distinct caption once: float32 ``(len(pairs), 2, L)``, arbitrary past the end of a segment."""
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
    """Train for an epoch in an order drawn from ``generator``; return the mean of the losses before each step."""
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
    """Return loss, accuracy and calibration error without ties, also at the best temperature; NaN if all tie."""
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
    """Return the number of pairs or labelled captions that the model agrees with, and their number, without ties."""
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
    """Set ``model.normalization`` from its rewards of the pairs' captions, unless these are labels."""
    model.eval()
    if model.gives_labels:
        return
    counts = pairs.counts()
    seen = counts > 0
    captions = [pairs.captions[place] for place in seen.nonzero()[:, 0].tolist()]
    model.normalization = Normalization.of(model.rewards(captions), counts[seen])
