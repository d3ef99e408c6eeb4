"""Accuracy and calibration of a reward model's preferences.

Arguments of all functions: ``margins``, float ``(n,)``, the first segment's reward minus the second's; ``targets``,
float ``(n,)``, the probability that the first is preferred.
"""

import torch
from torch import Tensor

_BINS = 10
_BISECTIONS = 60


def accuracy(margins: Tensor, targets: Tensor) -> float:
    """Return the share of pairs, without ties (0.5), whose preferred segment gets the greater reward.

    Equal rewards count one half. NaN if there are only ties.
    """
    decided = targets != 0.5
    agreeing = torch.sign(margins) * torch.sign(targets - 0.5)  # 1, 0 or -1
    return ((agreeing[decided] + 1) / 2).mean().item()


def calibration_error(margins: Tensor, targets: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599, equation 3), without ties (0.5).

    The confidence in the preferred segment, σ(|margin|), is put into ten bins from 0.5 to 1; the result is the mean
    over the bins, weighted by their sizes, of |confidence - share of agreeing preferences|. NaN if there are only ties.
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
    """Return the T with the least cross-entropy of σ(margin / T) (temperature scaling, arXiv 1706.04599, section 4.2).

    Above 1 the model is overconfident. The cross-entropy is convex in 1 / T: bisection of its derivative from 1e-3 to
    1e3.
    """
    margins, targets = margins.double(), targets.double()
    low, high = -3.0, 3.0  # log10 of 1 / T
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = ((torch.sigmoid(margins * 10**middle) - targets) * margins).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))
