"""Losses of reward models: pure functions of tensors."""

import torch
from torch import Tensor


def preference_loss(rewards: Tensor, targets: Tensor) -> Tensor:
    """Bradley-Terry cross-entropy: the mean of -Σ_i p_i log softmax(r)_i (Motif, arXiv 2310.00166, equation 1).

    Args:
        rewards: Float ``(batch, 2)``, of each pair's two segments.
        targets: Float ``(batch, 2)``, rows that sum to 1: (1, 0) if the first is preferred, (0.5, 0.5) for a tie.
    """
    return -(targets * rewards.log_softmax(-1)).sum(-1).mean()


def segment_means(scores: Tensor, mask: Tensor) -> Tensor:
    """Average scores ``(..., L)`` where ``mask`` is True, once or more in each row: length gives no reward (Motif)."""
    return torch.where(mask, scores, 0.0).sum(-1) / mask.sum(-1)
