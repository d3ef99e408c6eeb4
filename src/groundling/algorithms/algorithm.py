"""The interface of algorithms, and their registry."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.policy import Policy, policies
from groundling.registry import Registry
from groundling.runtime.processes import Processes


class Algorithm(ABC):
    """Learns from rollouts. Registered under an id as a dataclass whose fields are its hyperparameters."""

    gamma: float
    """Discount factor."""
    offline: ClassVar[bool] = False
    """Learns from a dataset's rollouts (world.dataset) instead of the policy's own."""
    needs_values: ClassVar[bool] = True
    """Learns from values; a policy may do without a value function otherwise."""
    reports_entropy: ClassVar[bool] = True
    """`update` returns the policy's ``entropy``."""
    compares_episodes: ClassVar[bool] = False
    """Compares an episode with others of its group, such as the texts to one prompt."""
    divides_minibatches: ClassVar[bool] = True
    """A minibatch can be computed in parts, if the memory does not suffice for the whole."""
    steps_per_gradient: int = 1
    """Env steps per gradient step of an algorithm with a replay memory; 1: it learns from each rollout as a whole."""
    optimizer: torch.optim.Optimizer
    processes: Processes = Processes()
    """Processes that share the work, with the same rollout. An algorithm may ignore them: each then computes
    everything, which is correct, but no faster."""

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        """Check, before anything is loaded, that the algorithm can train a policy in a world.

        Args:
            policy: The policy's class, or a factory function, of whose product nothing is known yet.
            args: The policy's arguments, except for what is loaded.
            world: The world in which the policy acts, or whose demonstrations it learns from.

        Returns:
            None, or why not and what to set.
        """
        if not getattr(policy, "trainable", True):
            return "that policy has no weights to train"
        if self.offline and "demonstrated" not in world.experience:
            return (
                "it learns from a dataset (world.dataset=FOLDER, see `groundling collect`) or from a pool's references"
            )
        if not self.offline and "acted" not in world.experience:
            return "it learns from the policy's own episodes or texts (world.dataset must be null)"
        if self.compares_episodes and world.group_size == 1:
            return "it compares texts written to the same prompt (world.texts_per_prompt must be at least 2)"
        if not self.compares_episodes and world.group_size is not None and world.action == "choice":
            return "it does not compare episodes that begin alike (leave world.group_size out)"
        return None

    @abstractmethod
    def setup(self, policy: Policy) -> None:
        """Make the optimizer for the policy's trainable parameters."""

    @abstractmethod
    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Learn from one rollout, and return figures to log.

        Args:
            policy: The policy to train.
            rollout: Transitions gathered since the last update.
            generator: Shuffles the minibatches.
            remaining: Share of the training that is left, from 1 to 0, for schedules.
        """

    def use_folder(self, folder: Path) -> None:  # noqa: B027 (most need none)
        """Keep data that grows with the run, such as a replay memory, in the run's folder.
        Called before anything is learnt or loaded; of several processes, only the main one may write.
        """

    def state_dict(self) -> dict[str, Any]:
        """State that a run needs to continue exactly, besides the optimizer's; serialisable as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most have no state)
        """Restore what `state_dict` returned."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that a run needs to continue exactly, by name."""
        return {}

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:  # noqa: B027 (most have none)
        """Restore what `tensors` returned."""


algorithms: Registry[Any] = Registry("algorithm")


def check_trains(
    id: str, args: Mapping[str, Any], policy_id: str, policy_args: Mapping[str, Any], world: WorldSpec
) -> None:
    """Raise `ConfigError`, before anything is loaded, unless the algorithm can train the policy in a world.
    The message names suitable policies and algorithms.
    """
    reason = algorithms.create(id, **args).accepts(policies.get(policy_id), policy_args, world)
    if reason is None:
        return
    suited = {
        "policy.id": [p for p in policies if _suits(id, args, p, {}, world)],
        "algorithm.id": [a for a in algorithms if _suits(a, args, policy_id, policy_args, world)],
    }
    ways = " or ".join(f"{key} to one of {', '.join(ids)}" for key, ids in suited.items() if ids)
    problem = f"algorithm {id!r} does not suit policy {policy_id!r} in {world.name}: {reason}"
    raise ConfigError(f"{problem}; set {ways}" if ways else problem)


def penalises(id: str, args: Mapping[str, Any]) -> bool:
    """Return True if the algorithm has a KL penalty, for which the policy needs a reference."""
    return bool(args.get("kl_coefficient", getattr(algorithms.get(id), "kl_coefficient", 0)))


def _suits(id: str, args: Mapping[str, Any], policy_id: str, policy_args: Mapping[str, Any], world: WorldSpec) -> bool:
    """Return True if the algorithm, with those of ``args`` that it has, could train the policy."""
    policy, known = policies.get(policy_id), inspect.signature(algorithms.get(id)).parameters
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or policy.accepts(world) is not None:
        return False
    try:
        algorithm = algorithms.create(id, **{name: value for name, value in args.items() if name in known})
    except ConfigError:
        return False
    return algorithm.accepts(policy, policy_args, world) is None
