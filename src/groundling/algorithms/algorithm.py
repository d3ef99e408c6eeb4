"""The algorithm interface and registry."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.policy import Policy, policies
from groundling.registry import Registry
from groundling.runtime.processes import Processes


class Algorithm(ABC):
    """Base class for algorithms, which are registered as dataclasses whose fields are their hyperparameters."""

    gamma: float
    """Discount factor."""
    offline: ClassVar[bool] = False
    """True if it learns from a dataset's rollouts (world.dataset) instead of the policy's own."""
    learns_from: ClassVar[Literal["references", "pairs", "labels"]] = "references"
    """The data that an offline algorithm reads from a pool: references, pairs of a chosen and a rejected text, or texts
    labelled good or bad."""
    needs_reference: ClassVar[bool] = False
    """True if it compares the policy with its reference even without a KL penalty."""
    needs_values: ClassVar[bool] = True
    """True if it learns from values; otherwise the policy does not need a value function."""
    reports_entropy: ClassVar[bool] = True
    """True if `update` returns the policy's ``entropy``."""
    compares_episodes: ClassVar[bool] = False
    """True if it compares the episodes in a group, such as the texts generated from one prompt."""
    divides_minibatches: ClassVar[bool] = True
    """True if a minibatch can be split into micro-batches when it does not fit into memory."""
    steps_per_gradient: int = 1
    """Env steps per gradient step of an algorithm with a replay memory; 1 if it learns from whole rollouts."""
    optimizer: torch.optim.Optimizer
    processes: Processes = Processes()
    """Processes that share the work on the same rollout. An algorithm may ignore them: each process then computes
    everything, which is correct but no faster."""

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        """Check, before anything is loaded, whether the algorithm can train a policy in a world.
        ``policy`` is the policy's class, or a factory function whose result is not yet known; ``args`` are its
        arguments, except for loaded objects. Return None if it can, or else the reason and the setting to change.
        """
        if not getattr(policy, "trainable", True):
            return "that policy has no weights to train"
        if self.offline and "demonstrated" not in world.experience:
            return "it learns from a dataset (world.dataset=FOLDER, see `groundling collect`) or a pool's references"
        if not self.offline and "acted" not in world.experience:
            return "it learns from the policy's own episodes or texts (world.dataset must be null)"
        if self.compares_episodes and world.group_size == 1:
            return "it compares texts generated from the same prompt (world.texts_per_prompt must be at least 2)"
        if not self.compares_episodes and world.group_size is not None and world.action != "token":
            return "it does not compare episodes with the same start (leave world.group_size out)"
        return None

    @abstractmethod
    def setup(self, policy: Policy) -> None:
        """Create the optimizer for the policy's trainable parameters."""

    @abstractmethod
    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Learn from the transitions since the last update, and return metrics to log.
        ``generator`` shuffles minibatches; ``remaining`` is the remaining fraction of training, for schedules.
        """

    def use_folder(self, folder: Path) -> None:  # noqa: B027 (most need none)
        """Set the run's folder, which stores data that grows with the run, such as a replay memory.
        Called before anything is learned or loaded; only the main process may write.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-serialisable state that a run needs to resume exactly, apart from the optimizer's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most have no state)
        """Restore what `state_dict` returned."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that a run needs to resume exactly, by name."""
        return {}

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:  # noqa: B027 (most have none)
        """Restore what `tensors` returned."""


algorithms: Registry[Any] = Registry("algorithm")


def check_trains(
    id: str, args: Mapping[str, Any], policy_id: str, policy_args: Mapping[str, Any], world: WorldSpec
) -> None:
    """Raise `ConfigError`, before anything is loaded, unless the algorithm can train the policy in the world.
    The message lists compatible policies and algorithms.
    """
    reason = algorithms.create(id, **args).accepts(policies.get(policy_id), policy_args, world)
    if reason is None:
        return
    suited = {
        "policy.id": [p for p in policies if _suits(id, args, p, {}, world)],
        "algorithm.id": [a for a in algorithms if _suits(a, args, policy_id, policy_args, world)],
    }
    ways = " or ".join(f"{key} to one of {', '.join(ids)}" for key, ids in suited.items() if ids)
    problem = f"algorithm {id!r} is incompatible with policy {policy_id!r} in {world.name}: {reason}"
    raise ConfigError(f"{problem}; set {ways}" if ways else problem)


def penalises(id: str, args: Mapping[str, Any]) -> bool:
    """Return True if the algorithm has a KL penalty, which requires a reference."""
    return bool(args.get("kl_coefficient", getattr(algorithms.get(id), "kl_coefficient", 0)))


def _suits(id: str, args: Mapping[str, Any], policy_id: str, policy_args: Mapping[str, Any], world: WorldSpec) -> bool:
    """Return True if the algorithm, with the ``args`` that it accepts, could train the policy."""
    policy, known = policies.get(policy_id), inspect.signature(algorithms.get(id)).parameters
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or policy.accepts(world) is not None:
        return False
    try:
        algorithm = algorithms.create(id, **{name: value for name, value in args.items() if name in known})
    except ConfigError:
        return False
    return algorithm.accepts(policy, policy_args, world) is None
