"""REINFORCE++: advantages normalised over the whole batch take the place of a critic."""

from dataclasses import dataclass

import torch

from groundling.algorithms.advantages import returns_to_go, standardise
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy


@algorithms.register("reinforce_pp")
@dataclass
class ReinforcePlusPlus(ClippedOnPolicy):
    """REINFORCE++ (Hu 2025, arXiv 2501.03262, section 3).

    A_t = r - β Σ_{i≥t} KL(i),  Â = (A - mean A) / std A over all tokens,  L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)]

    β is kl_coefficient, and KL(i) = log π - log π_ref of token i.
    """

    gamma: float = 1.0
    """Discount factor; 1 in the paper."""
    needs_values = False

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go ``epochs`` times through ``rollout`` in shuffled minibatches, one optimizer step for each.

        Returns:
            Means over the minibatches of ``loss``, ``policy_loss``, ``entropy``, ``approx_kl``, ``clip_fraction`` and
            ``grad_norm``.

        Raises:
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        learning_rate = self.schedule(remaining)
        returns = returns_to_go(self.rewards(rollout), rollout.dones, self.gamma)
        batch = Batch.of(policy, rollout, standardise(returns, rollout.mask), returns)
        figures = self.go_through(
            policy,
            batch,
            lambda micro: self.policy_terms(batch, micro, batch.evaluate(policy, micro)),
            generator,
        )
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}
