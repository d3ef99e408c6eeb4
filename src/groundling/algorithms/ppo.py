"""Proximal policy optimisation, as GLAM grounds a language model with it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.algorithms.advantages import explained_variance
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.credit import Credit
from groundling.algorithms.losses import ppo_loss
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms
from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy


@algorithms.register("ppo")
@dataclass
class PPO(ClippedOnPolicy):
    """PPO (Schulman et al. 2017, arXiv 1707.06347); the defaults are GLAM's (arXiv 2302.02662, appendix)."""

    epochs: int = 4
    """How often each rollout is gone through; usually 1 to 10."""
    gae_lambda: float = 0.99
    """λ of generalised advantage estimation; usually 0.9 to 1."""
    value_clip_range: float | None = 0.2
    """How far a value may move from the old one without being clipped; null: no clipping."""
    value_coefficient: float = 1.0
    """Weight of the value loss, which is half the squared error: 1 here is 0.5 in GLAM and Stable-Baselines3."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus: raise it when the policy becomes certain too soon; usually 0 to 0.05."""
    normalize_advantages: bool = False
    """Shift and scale the rollout's advantages to mean 0 and deviation 1 (GLAM does not)."""
    credit: Credit = "turn"
    """Whose advantages the tokens of written turns have: "turn" gives them all their turn's; "token" and "poad" give
    each its own (see `token_advantages`)."""

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go ``epochs`` times through ``rollout`` in shuffled minibatches, one optimizer step for each.

        Returns:
            Means over the minibatches of ``loss``, ``policy_loss``, ``value_loss``, ``entropy``,
            ``approx_kl``, ``clip_fraction`` and ``grad_norm``, and the rollout's ``explained_variance``.

        Raises:
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        learning_rate = self.schedule(remaining)
        advantages, returns = self.advantages(
            rollout, self.gae_lambda, self.normalize_advantages, self.credit
        )
        batch = Batch.of(policy, rollout, advantages, returns)
        figures = self.go_through(policy, batch, lambda micro: self._terms(policy, batch, micro), generator)
        figures["explained_variance"] = explained_variance(batch.values, batch.returns, batch.weights)
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    def _terms(self, policy: Policy, batch: Batch, micro: Tensor) -> Terms:
        evaluation = batch.evaluate(policy, micro)
        loss = ppo_loss(
            evaluation.log_probs,
            batch.log_probs[micro],
            batch.advantages[micro],
            evaluation.values,
            batch.values[micro],
            batch.returns[micro],
            evaluation.entropies,
            clip_range=self.clip_range,
            value_clip_range=self.value_clip_range,
            value_coefficient=self.value_coefficient,
            entropy_coefficient=self.entropy_coefficient,
            mask=batch.weights_of(micro),
        )
        return loss.terms()
