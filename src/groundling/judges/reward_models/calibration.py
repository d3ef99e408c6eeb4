"""Accuracy and calibration of rewards: margins ``(n,)``, first minus second; targets ``(n,)``, p(first preferred)."""

import torch
from torch import Tensor

_BINS = 10
_BISECTIONS = 60


def accuracy(margins: Tensor, targets: Tensor) -> float:
    """Return the share of pairs, without ties (0.5), that rewards order correctly; equal rewards count 1/2."""
    decided = targets != 0.5
    agreeing = torch.sign(margins) * torch.sign(targets - 0.5)  # 1, 0 or -1
    return ((agreeing[decided] + 1) / 2).mean().item()


def calibration_error(margins: Tensor, targets: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599, equation 3), without ties (0.5); NaN if all tie.

    Mean over ten bins of the confidence σ(|margin|) from 0.5 to 1, weighted by size, of |confidence - share correct|.
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
    """Return the T of least cross-entropy of σ(margin / T) (arXiv 1706.04599, section 4.2); overconfident above 1."""
    margins, targets = margins.double(), targets.double()
    low, high = -3.0, 3.0  # log10 of 1 / T, in which the cross-entropy is convex: bisect its derivative
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = ((torch.sigmoid(margins * 10**middle) - targets) * margins).mean()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(10 ** -((low + high) / 2))
