"""Terms that any on-policy algorithm can add to its loss."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import masked_mean
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.policies.policy import Evaluation, Policy


class Regularizer:
    """Adds ``coefficient`` · `value` to a loss. A subclass implements `value`."""

    name: str  # Of its value in the log
    coefficient: float

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        """Return None if it suits the policy and the world, else why not."""
        return None

    def targets(self, rollout: Rollout) -> dict[str, Tensor]:
        """Tensors ``(num_steps, num_envs)`` that `value` reads from `Batch.more`."""
        return {}

    def prepare(self, policy: Policy, batch: Batch, generator: torch.Generator) -> None:
        """Called once before a rollout is learnt from; draws random numbers from ``generator``."""

    def value(self, policy: Policy, evaluation: Evaluation, batch: Batch) -> Tensor:
        """Mean over the steps of a micro-batch that count; a scalar, with gradients."""
        raise NotImplementedError


class EntropyBonus(Regularizer):
    """-c_e E[H]: keeps the policy from becoming deterministic too early (Williams and Peng 1991)."""

    name = "entropy"

    def __init__(self, coefficient: float) -> None:
        self.coefficient = -coefficient

    def value(self, policy: Policy, evaluation: Evaluation, batch: Batch) -> Tensor:
        return masked_mean(evaluation.entropies, batch.weights)
