"""What an algorithm is."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.policy import Policy, policies
from groundling.registry import Registry
from groundling.runtime.processes import Processes


class Algorithm(ABC):
    """Learns from rollouts. Registered under an id as a dataclass whose fields are its hyperparameters."""

    gamma: float
    """Discount factor."""
    demonstrated: ClassVar[bool] = False
    """Whether it learns from a dataset's rollouts (world.dataset) instead of the policy's own."""
    needs_values: ClassVar[bool] = True
    """Whether it learns by a value function; where it does not, a policy may do without one."""
    tells_entropy: ClassVar[bool] = True
    """Whether `update` gives the policy's ``entropy``."""
    compares: ClassVar[bool] = False
    """Whether it compares an episode with others of its group, as the texts to one prompt."""
    divides_minibatches: ClassVar[bool] = True
    """Whether a minibatch may be computed in parts, where memory does not suffice for the whole."""
    steps_per_gradient: int = 1
    """Env steps for each gradient step of one that learns from a memory; 1: it learns from each rollout as a whole."""
    optimizer: torch.optim.Optimizer
    processes: Processes = Processes()
    """The processes that share the work. All have the same rollout: an algorithm that ignores this does everything in
    each of them, which is right, and no faster."""

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        """Whether it can train a policy in a world, asked before anything is loaded: None, or why not and what to set.

        Args:
            policy: The policy's class; or a function, which does not say what it makes.
            args: What it will be called with, but for what is loaded.
            world: Where the policy acts, or what shows it how to.
        """
        if not getattr(policy, "trainable", True):  # a function that makes a policy does not say
            return "that policy has no weights to train"
        if self.demonstrated and "demonstrated" not in world.experience:
            return (
                "it learns from a dataset (world.dataset=FOLDER, see `groundling collect`) or from a pool's "
                "references"
            )
        if not self.demonstrated and "acted" not in world.experience:
            return "it learns from the policy's own episodes or texts (world.dataset must be null)"
        if self.compares and world.group_size == 1:
            return "it compares texts written to the same prompt (world.texts_per_prompt must be at least 2)"
        if not self.compares and world.group_size is not None and world.action == "choice":
            return "it does not compare episodes that begin alike (leave world.group_size out)"
        return None

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

    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors that a run needs to continue exactly, by name."""
        return {}

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:  # noqa: B027 (most algorithms keep none)
        """Take up what `tensors` gave."""


class AlgorithmRegistry(Registry[Any]):
    """Refuses algorithms of Stable-Baselines3, which RL4LMs wraps."""

    def register(self, id: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a class or function; see `Registry.register`."""
        add = super().register(id)

        def decorate(factory: Callable[..., Any]) -> Callable[..., Any]:
            origins = {base.__module__.partition(".")[0] for base in getattr(factory, "__mro__", ())}
            if origins & {"stable_baselines3", "sb3_contrib"}:
                raise ConfigError(
                    f"algorithm {id!r} is Stable-Baselines3's, which collects its own rollouts: subclass "
                    "groundling.algorithms.Algorithm instead, with its loss in update(policy, rollout), as "
                    "examples/own_algorithm.py does"
                )
            return add(factory)

        return decorate


algorithms = AlgorithmRegistry("algorithm")


def check_trains(
    id: str, args: Mapping[str, Any], policy_id: str, policy_args: Mapping[str, Any], world: WorldSpec
) -> None:
    """Check that the algorithm ``id`` can train the policy ``policy_id`` in a world, before anything is loaded.

    Raises:
        ConfigError: no such algorithm or policy, options that cannot be run, or it cannot; the message names the
            policies and algorithms that would do.
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
    """Whether the algorithm ``id`` has a KL penalty, for which the policy needs the weights as training began."""
    return bool(args.get("kl_coefficient", getattr(algorithms.get(id), "kl_coefficient", 0)))


def _suits(
    id: str, args: Mapping[str, Any], policy_id: str, policy_args: Mapping[str, Any], world: WorldSpec
) -> bool:
    """Whether the algorithm ``id``, with those of ``args`` that it takes, could train the policy."""
    policy, known = policies.get(policy_id), inspect.signature(algorithms.get(id)).parameters
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or policy.accepts(world) is not None:
        return False
    try:
        algorithm = algorithms.create(id, **{name: value for name, value in args.items() if name in known})
    except ConfigError:
        return False
    return algorithm.accepts(policy, policy_args, world) is None


def is_other(policy: Callable[..., Policy], kind: type) -> bool:
    """Whether a policy is a class that is no ``kind``."""
    return isinstance(policy, type) and not issubclass(policy, kind)
