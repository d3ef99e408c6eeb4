"""Distillation: train a reward model on annotated pairs of segments, and evaluate it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from groundling.errors import ConfigError, RunError
from groundling.judges.preferences.pairs import caption_id, caption_ids
from groundling.judges.reward_models.reward_model import Normalization, RewardModel, chunks, segment_means

_TARGETS = np.array([[1, 0], [0, 1], [0.5, 0.5], [np.nan, np.nan]], dtype=np.float32)  # by `Preference` code


@dataclass(frozen=True)
class TrainingPairs:
    """N annotated pairs of segments of up to L captions, on the CPU.

    A labelled caption (for ONI's classifier) is a "pair" with one side: indices ``(N, 1, 1)``, targets ``(N, 1)``.
    """

    captions: list[str]  # distinct captions, shortest first
    indices: Tensor  # int64 (N, 2, L) into captions; -1 past the end of a segment
    targets: Tensor  # float32 (N, 2): the probability that each of the two segments is preferred; rows sum to 1

    @classmethod
    def of(
        cls,
        segments: Sequence[Sequence[Sequence[str]]],
        preferences: NDArray[np.integer],
        soft: NDArray[np.floating] | None = None,
    ) -> Self:
        """Create pairs from segments of at least one caption and labels ``(N,)``; drop pairs with unknown labels.

        ``soft``, ``(N, 3)``, contains the probabilities of the first segment, the second segment and a tie; NaN where
        only the label is known. A tie counts half per side. Raises `ConfigError` if all labels are unknown or ties.
        """
        annotated = np.flatnonzero(preferences != 3)
        if not len(annotated):
            raise ConfigError(f"none of the {len(preferences)} pairs has an answer: run `groundling annotate` first")
        targets = _TARGETS[preferences[annotated]]
        if soft is not None:
            probabilities = soft[annotated]
            shares = probabilities[:, :2] + probabilities[:, 2:] / 2
            shares = shares / shares.sum(-1, keepdims=True)  # probabilities may be rounded
            targets = np.where(np.isnan(shares), targets, shares).astype(np.float32)
        if not (targets[:, 0] != targets[:, 1]).any():
            unknown = len(preferences) - len(annotated)
            rest = f" and {unknown} have no answer" if unknown else ""
            raise ConfigError(
                f"the judge has no preferences: {len(annotated)} of {len(preferences)} pairs are ties{rest}, so a "
                "reward model would learn noise: use a different judge, or collect segments that differ more"
            )
        captions, indices = _index(segments)
        return cls(captions, torch.from_numpy(indices[annotated]), torch.from_numpy(targets))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: Tensor) -> "TrainingPairs":
        return TrainingPairs(self.captions, self.indices[rows], self.targets[rows])

    def counts(self) -> Tensor:
        """Return how often each caption occurs in the pairs, int64 ``(num_distinct,)``."""
        return torch.bincount(self.indices[self.indices >= 0], minlength=len(self.captions))

    def distinct(self) -> tuple[list[str], Tensor]:
        """Return distinct captions, and indices into them, int64 ``(N, 2, L)``, arbitrary past a segment's end."""
        places, indices = torch.unique(self.indices.clamp(min=0), return_inverse=True)
        return [self.captions[place] for place in places.tolist()], indices

    def mask(self) -> Tensor:
        """Return a mask, bool ``(N, 2, L)``, that is False past the end of a segment."""
        return self.indices >= 0

    def split(self, validation_fraction: float, seed: int) -> "tuple[TrainingPairs, TrainingPairs]":
        """Split into training and validation pairs; all copies of a pair, in either order, are in the same split.

        The fraction refers to *distinct* pairs: since copies of a few of them make up most of a dataset, holding out
        a fraction of all pairs could remove every rare caption from training. Distinct pairs are sorted by a hash of
        content and seed. The first are held out with all copies, unless these would exceed the fraction of all pairs.
        """
        hashes = _content_hashes(self.captions, self.indices.numpy(), seed)
        distinct, group, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        held_out, room = np.zeros(len(distinct), dtype=bool), int(validation_fraction * len(self))
        left = math.ceil(validation_fraction * len(distinct))
        for number, count in enumerate(counts.tolist()):
            if left and count <= room:
                held_out[number] = True
                room -= count
                left -= 1
        rows = torch.from_numpy(held_out[group])
        sides = self[(~rows).nonzero()[:, 0]], self[rows.nonzero()[:, 0]]
        if not len(sides[0]) or (validation_fraction > 0 and not len(sides[1])):
            raise ConfigError(
                f"of {len(self)} pairs, validation_fraction={validation_fraction} leaves {len(sides[0])} for training "
                f"and {len(sides[1])} for validation: collect and annotate more pairs"
            )
        return sides


def _index(pairs: Sequence[Sequence[Sequence[str]]]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct captions, shortest first, and indices into them, ``(N, 2, L)``; -1 past a segment's end."""
    segments = [segment for pair in pairs for segment in pair]
    every = [caption for segment in segments for caption in segment]
    captions = sorted(set(every), key=lambda caption: (len(caption), caption_id(caption)))
    places = {caption: place for place, caption in enumerate(captions)}
    lengths = np.array([len(segment) for segment in segments], dtype=np.int64).reshape(-1, 2, 1)
    indices = np.full((len(pairs), 2, lengths.max(initial=1)), -1)
    indices[np.arange(indices.shape[2]) < lengths] = [places[caption] for caption in every]
    return captions, indices


def _content_hashes(captions: list[str], indices: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Return a hash of each pair ``(N,)`` that ignores segment order, empty captions and consecutive repetitions."""
    empty = np.int64(caption_id("")).view(np.uint64)
    # Index -1 is hashed like an empty caption.
    ids = np.append(caption_ids(captions), np.int64(caption_id("")))[indices].view(np.uint64)  # (N, 2, L)
    segments = np.zeros(ids.shape[:2], dtype=np.uint64)
    last = np.zeros_like(segments)
    for step in range(ids.shape[2]):
        now = ids[..., step]
        is_new = (now != empty) & (now != last)
        segments = np.where(is_new, _mixed(segments ^ now), segments)
        last = np.where(now != empty, now, last)
    unordered = _mixed(segments[:, 0]) + _mixed(segments[:, 1])
    salt = _mixed(np.array([seed], dtype=np.uint64))
    return _mixed(unordered ^ salt)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: a bijection that mixes all bits."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def segment_scores(model: RewardModel, pairs: TrainingPairs) -> Tensor:
    """Return scores, float32 ``(len(pairs), 2, L)``, arbitrary past a segment's end. Each caption is scored once."""
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
    """Train for one epoch in an order sampled from ``generator``; return the mean training loss."""
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


_BINS = 10
_BISECTIONS = 60


def accuracy(margins: Tensor, targets: Tensor) -> float:
    """Return the fraction of pairs that rewards rank correctly, ignoring ties (0.5); equal rewards count as 1/2."""
    decided = targets != 0.5
    agreeing = torch.sign(margins) * torch.sign(targets - 0.5)  # 1, 0 or -1
    return ((agreeing[decided] + 1) / 2).mean().item()


def calibration_error(margins: Tensor, targets: Tensor) -> float:
    """Return the expected calibration error (arXiv 1706.04599, eq. 3), ignoring ties (0.5); NaN if all are ties.

    It is the mean of |confidence - accuracy| over ten bins of confidence σ(|margin|) in [0.5, 1], weighted by bin size.
    """
    decided = targets != 0.5
    margins, targets = margins[decided].double(), targets[decided].double()
    confidence = torch.sigmoid(margins.abs())
    correct = torch.where(margins > 0, targets, 1 - targets)
    correct = torch.where(margins == 0, 0.5, correct)
    bins = ((confidence - 0.5) * 2 * _BINS).long().clamp(max=_BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add(0, bins, confidence - correct)
    return gaps.abs().sum().item() / len(margins) if len(margins) else float("nan")


def best_temperature(margins: Tensor, targets: Tensor) -> float:
    """Return the temperature T that minimises the cross-entropy of σ(margin / T) (arXiv 1706.04599)."""
    margins, targets = margins.double(), targets.double()
    low, high = -3.0, 3.0  # log10(1 / T); the cross-entropy is convex in 1 / T, so bisect its derivative
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = ((torch.sigmoid(margins * 10**middle) - targets) * margins).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))


@torch.no_grad()
def evaluate(model: RewardModel, pairs: TrainingPairs) -> dict[str, float]:
    """Return loss, best temperature, accuracy and calibration errors; the last two are NaN if all pairs are ties."""
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
    """Return how many pairs or labelled captions the model agrees with, and how many there are, ignoring ties."""
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
    """Set ``model.normalization`` from the rewards of the pairs' captions, unless the rewards are labels."""
    model.eval()
    if model.gives_labels:
        return
    counts = pairs.counts()
    seen = counts > 0
    captions = [pairs.captions[place] for place in seen.nonzero()[:, 0].tolist()]
    model.normalization = Normalization.of(model.rewards(captions), counts[seen])
