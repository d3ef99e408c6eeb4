"""What one collection phase gathered, and how it is cut into minibatches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Rollout:
    """Transitions as tensors ``(num_steps, num_envs)`` (or, of a policy that writes, a token a step).

    On the CPU; float32 unless said otherwise.
    """

    observations: list[Any]
    """``num_steps * num_envs`` observations, step by step: index ``step * num_envs + env``."""
    actions: Tensor
    """int64."""
    log_probs: Tensor
    """Log-probability of each action when it was taken."""
    values: Tensor
    rewards: Tensor
    dones: Tensor
    """bool: the episode ended with this transition."""
    last_values: Tensor
    """``(num_envs,)``: the value of the observations after the last step."""

    def __len__(self) -> int:
        return self.actions.numel()


def micro_batches(indices: Tensor, size: int, costs: Sequence[int] | None) -> Iterator[Tensor]:
    """Cut the ``indices`` of a minibatch into pieces of at most ``size``.

    Where ``costs`` (one per rollout element) are given, elements of like cost come together, so that little
    of a batch is padding. Every element is in exactly one piece.
    """
    if costs is not None:
        order = torch.tensor([costs[i] for i in indices.tolist()]).argsort(stable=True)
        indices = indices[order]
    yield from indices.split(size)
