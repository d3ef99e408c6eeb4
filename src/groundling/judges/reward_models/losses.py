"""Losses of reward models: pure functions of tensors."""

import torch
from torch import Tensor
from torch.nn import functional as F


def preference_loss(rewards: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the Bradley-Terry model: the mean of -Σ_i p_i log softmax(r)_i (Motif, equation 1).

    Args:
        rewards: Float (batch, 2), of each pair's two segments.
        targets: Float (batch, 2), rows that sum to 1: (1, 0) where the first is preferred, (0.5, 0.5) for a tie.

    Returns:
        A scalar; ln 2 where the rewards of every pair are equal.
    """
    return -(targets * rewards.log_softmax(-1)).sum(-1).mean()


def segment_means(scores: Tensor, mask: Tensor) -> Tensor:
    """The mean of each segment's scores, as Motif compares segments: a long one is not worth more by its length.

    Args:
        scores: Float (..., L).
        mask: Bool, of the same shape: which of them count; at least one of each segment.

    Returns:
        Float (...).
    """
    return torch.where(mask, scores, 0.0).sum(-1) / mask.sum(-1)


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, the mean over captions: what ONI's classifier is trained with.

    Args:
        logits: Float, of the same shape as ``labels``.
        labels: Float, the probability that a caption is worth a reward.
    """
    return F.binary_cross_entropy_with_logits(logits, labels)
