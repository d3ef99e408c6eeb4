"""REINFORCE with a leave-one-out baseline."""

from dataclasses import dataclass
from typing import Annotated

from groundling.algorithms.advantages import leave_one_out, returns_to_go
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Targets
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.rollout import Rollout
from groundling.fields import Ge, Le


@algorithms.register("rloo")
@dataclass
class RLOO(ClippedOnPolicy):
    """RLOO (Ahmadian et al. 2024, arXiv 2402.14740, section 2.3): the other answers to a prompt are the baseline.
    Â_i = R_i - 1/(k-1) Σ_{j≠i} R_j,  L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)], whose gradient is REINFORCE's at ρ = 1

    R is the reward minus the KL penalty, as returns to go. The mean is over tokens, which differs from the paper's
    mean over answers by their mean length.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0
    """Discount factor; 1 in the paper."""
    needs_values = False
    compares_episodes = True

    def targets(self, rollout: Rollout) -> Targets:
        returns = returns_to_go(self.rewards(rollout), rollout.dones, self.gamma)
        return Targets(leave_one_out(rollout, returns), returns)
