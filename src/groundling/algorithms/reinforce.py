"""REINFORCE++: advantages normalised over the whole batch replace a critic."""

from dataclasses import dataclass
from typing import Annotated

from groundling.algorithms.advantages import returns_to_go, standardise
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Targets
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.rollout import Rollout
from groundling.fields import Ge, Le


@algorithms.register("reinforce_pp")
@dataclass
class ReinforcePlusPlus(ClippedOnPolicy):
    """REINFORCE++ (Hu 2025, arXiv 2501.03262, section 3).
    A_t = r - β Σ_{i≥t} KL(i),  Â = (A - mean A) / std A over all tokens,  L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)]
    with β the kl_coefficient, and KL(i) = log π - log π_ref of token i.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0
    """Discount factor; 1 in the paper."""
    needs_values = False

    def targets(self, rollout: Rollout) -> Targets:
        returns = returns_to_go(self.rewards(rollout), rollout.dones, self.gamma)
        return Targets(standardise(returns, rollout.mask), returns)
