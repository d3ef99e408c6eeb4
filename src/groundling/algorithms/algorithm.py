"""What an algorithm is."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch

from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy
from groundling.processes import Processes
from groundling.registry import Registry


class Algorithm(ABC):
    """Learns from rollouts. Registered under an id as a dataclass whose fields are its hyperparameters."""

    gamma: float
    """Discount factor."""
    demonstrated: ClassVar[bool] = False
    """Whether it learns from a dataset's rollouts (data.path) instead of the policy's own."""
    needs_values: ClassVar[bool] = True
    """Whether it learns by a value function; where it does not, a policy may do without one."""
    steps_per_gradient: int = 1
    """Env steps for each gradient step of one that learns from a memory; 1: it learns from each rollout as a whole."""
    optimizer: torch.optim.Optimizer
    processes: Processes = Processes()
    """The processes that share the work. All have the same rollout: an algorithm that ignores this does everything in
    each of them, which is right, and no faster."""

    @abstractmethod
    def setup(self, policy: Policy) -> None:
        """Make the optimizer for the policy's trainable parameters."""

    @abstractmethod
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

    def keep_in(self, folder: Path) -> None:  # noqa: B027 (most keep nothing)
        """Be told a run's folder, before anything is learnt or taken up: what grows with the run is kept there, beside
        the checkpoints; of several processes, by the main one.
        """

    def state_dict(self) -> dict[str, Any]:
        """What else a run needs to go on exactly, beside the optimizer's state; as JSON holds it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most algorithms have nothing to take up)
        """Take up what `state_dict` gave."""


algorithms: Registry[Any] = Registry("algorithm")
