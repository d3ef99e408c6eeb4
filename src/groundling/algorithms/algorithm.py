"""What an algorithm is."""

from typing import Any, Protocol

import torch

from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy
from groundling.registry import Registry


class Algorithm(Protocol):
    """Learns from rollouts. Registered under an id as a dataclass whose fields are its hyperparameters."""

    gamma: float
    """Discount factor."""
    optimizer: torch.optim.Optimizer

    def setup(self, policy: Policy) -> None:
        """Make the optimizer for the policy's trainable parameters."""

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Learn from one rollout.

        Args:
            policy: What learns.
            rollout: What the policy gathered since the last update.
            generator: Shuffles the minibatches.
            remaining: The share of the training that is left, from 1 to 0, for schedules.

        Returns:
            The figures to log.
        """


algorithms: Registry[Any] = Registry("algorithm")
