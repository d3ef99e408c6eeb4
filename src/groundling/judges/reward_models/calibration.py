"""Whether a reward model is as sure of its preferences as it should be."""

import torch
from torch import Tensor

_BINS = 10
_BISECTIONS = 60


def accuracy(margins: Tensor, targets: Tensor) -> float:
    """The share of pairs whose preferred segment gets the greater reward; equal rewards count one half.

    Args:
        margins: Float (n,), the first segment's reward less the second's.
        targets: Float (n,), the probability that the first is preferred; ties (0.5) are left out.

    Returns:
        NaN if there are only ties.
    """
    decided = targets != 0.5
    agreeing = torch.sign(margins) * torch.sign(targets - 0.5)  # 1, 0 or -1
    return ((agreeing[decided] + 1) / 2).mean().item()


def calibration_error(margins: Tensor, targets: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599, equation 3).

    The model's confidence in the segment that it prefers, σ(|margin|), is put into ten bins from 0.5 to 1; the mean
    over the bins, weighted by their sizes, of |confidence - share of preferences that agree|.

    Args:
        margins: Float (n,), the first segment's reward less the second's.
        targets: Float (n,), the probability that the first is preferred; ties (0.5) are left out.

    Returns:
        NaN if there are only ties.
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
    """The T for which σ(margin / T) has the least cross-entropy (temperature scaling, arXiv 1706.04599, section 4.2).

    Above 1 the model is too sure of itself. Found by bisection of the derivative in 1 / T, of which the cross-entropy
    is convex; between 1e-3 and 1e3.

    Args:
        margins: Float (n,), the first segment's reward less the second's.
        targets: Float (n,), the probability that the first is preferred.
    """
    margins, targets = margins.double(), targets.double()
    low, high = -3.0, 3.0  # log10 of 1 / T
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = ((torch.sigmoid(margins * 10**middle) - targets) * margins).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))
