"""Group-in-group policy optimisation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from groundling.algorithms.advantages import group_relative, returns_to_go
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.credit import anchored
from groundling.algorithms.grpo import GRPO
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.fields import Ge, Gt, Le
from groundling.policies.policy import Policy


@algorithms.register("gigpo")
@dataclass
class GiGPO(GRPO):
    """GiGPO (Feng et al. 2025, arXiv 2505.10978): GRPO that also compares actions at states that episodes share.
    Â = Â^E + ω Â^S. Â^E compares the episode's undiscounted return within its group. Â^S compares a step's discounted
    return to go with those of the group's other steps with the same goal, view and actions; see `anchored`.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 0.95
    """Discount factor of Â^S; 0.95 in the paper. Below 1, steps of an episode rewarded only at its end differ."""
    step_weight: Annotated[float, Gt(0)] = 1.0
    """ω: weight of the comparison of steps; 1 in the paper."""

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if world.group_size is None or "words" not in world.observation:
            return "it compares the steps of episodes that begin alike (a text world with world.group_size=8, say)"
        return super().accepts(policy, args, world)

    def compare(self, rollout: Rollout, rewards: Tensor, returns: Tensor) -> Tensor:
        assert rollout.states is not None  # see `accepts`
        of_episodes = group_relative(rollout, returns_to_go(rewards, rollout.dones, 1.0), self.normalize_std)
        return of_episodes + self.step_weight * anchored(rollout, returns, rollout.states, self.normalize_std)
