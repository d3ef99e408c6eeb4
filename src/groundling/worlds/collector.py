"""Where a run's rollouts come from: envs, a dataset, texts that the policy writes, workers that play."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.errors import ConfigError
from groundling.policies.policy import Policy


class Finished(Protocol):
    """An episode that has ended, as a run counts it."""

    @property
    def episode_return(self) -> float:
        """Sum of the world's own rewards, without scale or shaping; of texts, which a world does not pay, of the reward
        that they are learnt from, each part times its coefficient.
        """

    @property
    def length(self) -> int:
        """Steps, or tokens."""

    @property
    def success(self) -> bool | None:
        """Whether it succeeded; None in a world that knows no success."""

    @property
    def figures(self) -> Mapping[str, float]:
        """What else is to be logged, as means over episodes."""


class Collector(ABC):
    """Gives rollouts of as many columns as this process has envs, and knows how to go on after a restart."""

    remaining: float = 1.0
    """Share of the training that is left, from 1 to 0; set before each rollout, for what changes with it."""

    @abstractmethod
    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, Sequence[Finished]]:
        """The next rollout, and the episodes that ended in it.

        Args:
            policy: Chooses the actions.
            generator: Draws them; all processes have one that is alike, and draw as often from it.
            on_step: Called now and then with the number of transitions gathered since.
        """

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """Count passes over the data: from now on a rollout ends where a pass ends, so the last of a pass may be short.

        Returns:
            The steps and the updates of ``epochs`` passes.

        Raises:
            ConfigError: there are no data, but what the policy does itself.
        """
        raise ConfigError(
            f"training.epochs={epochs} counts passes over a dataset or a pool's references, and this algorithm "
            "learns from the policy's own episodes or texts: set training.steps"
        )

    @abstractmethod
    def state_dict(self) -> list[dict[str, Any]]:
        """Where it stands, as JSON: one entry for each of this process's envs."""

    @abstractmethod
    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Go on where `state_dict` was taken, of this process's envs."""

    def tensors(self) -> dict[str, Tensor]:
        """What else it needs to go on, ``(num_envs, …)`` for this process's envs."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 (most have none)
        """Take up this process's rows of what `tensors` gave."""

    def incidents(self) -> dict[str, int]:
        """How often what is to be watched came about in this process so far; logged at every update, of all in sum."""
        return {}

    def samples(self) -> list[dict[str, Any]]:
        """What of the last rollout people can read, as JSON; nothing in most worlds."""
        return []

    def save_shared(self, folder: Path) -> None:  # noqa: B027 (most have none)
        """Write what it knows that is no env's into a checkpoint; of several processes, the first one's is kept."""

    def load_shared(self, folder: Path) -> None:  # noqa: B027 (most have none)
        """Take up what `save_shared` wrote."""

    def close(self) -> None:  # noqa: B027 (most hold nothing open)
        """Let go of envs and processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def summarise(episodes: Sequence[Finished]) -> dict[str, float | int | None]:
    """Figures of the episodes that ended in an update; None where there was none."""
    names = [
        *("return_mean", "return_std", "return_min", "return_max", "success_rate"),
        *("episode_length", "episode_length_std", "episode_length_min", "episode_length_max"),
    ]
    if not episodes:
        return dict.fromkeys(names)
    lengths = np.array([e.length for e in episodes])
    returns = np.array([e.episode_return for e in episodes])
    successes = [e.success for e in episodes if e.success is not None]
    figures = {name for e in episodes for name in e.figures}
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "success_rate": float(np.mean(successes)) if successes else None,
        "episode_length": float(lengths.mean()),
        "episode_length_std": float(lengths.std()),
        "episode_length_min": int(lengths.min()),
        "episode_length_max": int(lengths.max()),
    } | {
        name: float(np.mean([e.figures[name] for e in episodes if name in e.figures]))
        for name in sorted(figures)
    }
