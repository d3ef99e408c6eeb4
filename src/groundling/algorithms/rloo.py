"""REINFORCE with a leave-one-out baseline."""

from dataclasses import dataclass

import torch

from groundling.algorithms.advantages import leave_one_out, returns_to_go
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy


@algorithms.register("rloo")
@dataclass
class RLOO(ClippedOnPolicy):
    """RLOO (Ahmadian et al. 2024, arXiv 2402.14740, section 2.3): the other answers to a prompt are the baseline.

    Â_i = R_i - 1/(k-1) Σ_{j≠i} R_j,  L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)], whose gradient is REINFORCE's at ρ = 1

    R is the reward less the KL penalty, as returns to go (see `leave_one_out`); groups are the rollout's. The mean is
    over tokens, which differs from the paper's mean over answers by their mean length.
    """

    gamma: float = 1.0
    """Discount factor; 1 in the paper."""
    needs_values = False
    compares = True

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go ``epochs`` times through ``rollout`` in shuffled minibatches, one optimizer step for each.

        Returns:
            Means over the minibatches of ``loss``, ``policy_loss``, ``entropy``, ``approx_kl``, ``clip_fraction`` and
            ``grad_norm``.

        Raises:
            ConfigError: a prompt was answered only once.
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        learning_rate = self.schedule(remaining)
        returns = returns_to_go(self.rewards(rollout), rollout.dones, self.gamma)
        batch = Batch.of(policy, rollout, leave_one_out(rollout, returns), returns)
        figures = self.go_through(
            policy,
            batch,
            lambda micro: self.policy_terms(batch, micro, batch.evaluate(policy, micro)),
            generator,
        )
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}
