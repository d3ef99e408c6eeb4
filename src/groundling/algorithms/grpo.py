"""Group relative policy optimisation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from groundling.algorithms.advantages import group_relative, most_uncertain, returns_to_go
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Targets
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.fields import Ge, Gt, Le
from groundling.policies.policy import Policy


@algorithms.register("grpo")
@dataclass
class GRPO(ClippedOnPolicy):
    """GRPO (Shao et al. 2024, arXiv 2402.03300, equations 3 and 4).
    Â_i = (R_i - mean R) / std R over the answers to a prompt,
    L = -E_i[1/|o_i| Σ_t min(ρ Â, clip(ρ, 1-ε, 1+ε) Â) - β (exp(-d) + d - 1)],  d = log π - log π_ref (unfiltered)

    β is kl_coefficient: the penalty is in the loss, not in the rewards; 0.04 in the paper, 0 in most later work. For
    rollouts of envs the mean is over steps, or over the tokens of all turns, and R is an episode's discounted return.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0
    """Discount factor; 1 in the paper."""
    normalize_std: bool = True
    """Divide by the group's deviation; false: the advantages of Dr. GRPO (Liu et al. 2025, arXiv 2503.20783)."""
    group_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Learn from the share of the groups whose returns deviate most (StarPO-S: Wang et al. 2025, arXiv 2504.20073)."""
    mean_of_sequences: bool = True
    """Mean of the sequences' means, as in the paper: tokens of long answers count less. False: mean of all tokens, as
    in DAPO (Yu et al. 2025, arXiv 2503.14476). Dr. GRPO divides by a constant instead."""
    needs_values = False
    compares_episodes = True
    kl_in_loss = True

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if not self.mean_of_sequences and world.action != "token":
            return (
                "mean_of_sequences=false is for texts: in an env the mean is over steps or tokens anyway, so "
                "leave it out"
            )
        if self.group_share < 1 and world.group_size is None:
            return f"group_share={self.group_share} is for several groups of episodes (set world.group_size)"
        return super().accepts(policy, args, world)

    def targets(self, rollout: Rollout) -> Targets:
        rewards = self.rewards(rollout)
        returns = returns_to_go(rewards, rollout.dones, self.gamma)
        targets = Targets(self.compare(rollout, rewards, returns), returns)
        if self.group_share < 1:
            targets.chosen = most_uncertain(rollout, returns, self.group_share)
        if rollout.sequences and rollout.mask is not None and self.mean_of_sequences:
            counted = rollout.mask.to(rewards.dtype)  # (num_tokens, num_sequences)
            targets.weights = counted / counted.sum(0).clamp(min=1)
        return targets

    def compare(self, rollout: Rollout, rewards: Tensor, returns: Tensor) -> Tensor:
        """Advantages within groups, from discounted returns to go; all tensors ``(num_steps, num_envs)``."""
        return group_relative(rollout, returns, self.normalize_std)
