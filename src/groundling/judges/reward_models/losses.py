"""Losses of reward models: pure functions of tensors."""

from torch import Tensor
from torch.nn import functional as F


def preference_loss(rewards: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the Bradley-Terry model: the mean of -Σ_i p_i log softmax(r)_i (Motif, equation 1).

    Args:
        rewards: float (batch, 2), of each pair's two segments.
        targets: float (batch, 2), rows that sum to 1: (1, 0) where the first is preferred, (0.5, 0.5) for a tie.

    Returns:
        A scalar; ln 2 where the rewards of every pair are equal.
    """
    return -(targets * rewards.log_softmax(-1)).sum(-1).mean()


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, the mean over messages: what ONI's classifier is trained with.

    Args:
        logits: float, of the same shape as ``labels``.
        labels: float, the probability that a message is worth a reward.
    """
    return F.binary_cross_entropy_with_logits(logits, labels)
