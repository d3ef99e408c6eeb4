"""The source of a run's rollouts: envs, a dataset, a pool of prompts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.rewards import RewardSum
from groundling.worlds.episode import Episode


class Collector(ABC):
    """Collects rollouts of this process's envs or texts, and resumes after a restart."""

    remaining: float = 1.0
    """Share of the training that is left, from 1 to 0, for schedules; set before each rollout."""
    reward: RewardSum = RewardSum({})
    """The reward, loaded; none in datasets and in worlds that compute it themselves."""

    @abstractmethod
    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, Sequence[Episode]]:
        """Return the next rollout, and the episodes that ended in it.

        Args:
            policy: Chooses the actions.
            generator: Draws them; it is the same in all processes, which draw equally often from it.
            on_step: Called now and then with the number of transitions collected since.
        """

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """Count passes over the data: from now on a rollout ends with a pass, so a pass's last may be short.

        Returns:
            The steps and the updates of ``epochs`` passes.

        Raises:
            ConfigError: The policy's own actions are the data.
        """
        raise ConfigError(
            f"training.epochs={epochs} counts passes over a dataset or a pool's references, and this algorithm "
            "learns from the policy's own episodes or texts: set training.steps"
        )

    @abstractmethod
    def state_dict(self) -> list[dict[str, Any]]:
        """Return the position as JSON, one entry for each of this process's envs."""

    @abstractmethod
    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Return to the position that `state_dict` gave."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the rest of the position, tensors ``(num_envs, …)`` of this process's envs."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 (optional)
        """Load this process's rows of `tensors`."""

    def incidents(self) -> dict[str, int]:
        """Return counts of lost envs and the like in this process so far; each update logs the sums."""
        return self.reward.figures()

    def samples(self) -> list[dict[str, Any]]:
        """Return readable parts of the last rollout as JSON."""
        return []

    def save_shared(self, folder: Path) -> None:
        """Write state that belongs to no env into a checkpoint; only the first process does."""
        self.reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        """Load what `save_shared` wrote."""
        self.reward.load(folder)

    def close(self) -> None:
        """Close envs and processes."""
        self.reward.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
