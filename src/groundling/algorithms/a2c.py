"""Advantage actor-critic: one step on each rollout."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.algorithms.advantages import explained_variance
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.credit import Credit
from groundling.algorithms.losses import masked_mean
from groundling.algorithms.on_policy import OnPolicy
from groundling.algorithms.optimisation import Terms, learn, trainable, whole_and_parts
from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy


@algorithms.register("a2c")
@dataclass
class A2C(OnPolicy):
    """A2C (Mnih et al. 2016, arXiv 1602.01783, the synchronous form), with Stable-Baselines3's defaults.

    L = -E[log π(a) Â] + c_v ½ E[(V - R)²] - c_e E[H]
    """

    learning_rate: float = 7e-4
    """RMSprop's step size."""
    rms_alpha: float = 0.99
    """How slowly RMSprop forgets."""
    rms_epsilon: float = 1e-5
    gae_lambda: float = 1.0
    """λ of generalised advantage estimation; 1: returns minus values."""
    value_coefficient: float = 1.0
    """Weight of the value loss, which is half the squared error: 1.0 here is 0.5 in Stable-Baselines3."""
    credit: Credit = "turn"
    """Whose advantages the tokens of written turns have: "turn" gives them all their turn's; "token" and "poad" give
    each its own (see `token_advantages`)."""

    def setup(self, policy: Policy) -> None:
        """Make RMSprop for the policy's trainable parameters."""
        self.optimizer = torch.optim.RMSprop(
            [{"params": group} for group in whole_and_parts(trainable(policy))],
            lr=self.learning_rate,
            alpha=self.rms_alpha,
            eps=self.rms_epsilon,
        )

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """One optimizer step on the whole of ``rollout``.

        Returns:
            ``loss``, ``policy_loss``, ``value_loss``, ``entropy``, ``grad_norm`` and ``explained_variance``.

        Raises:
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        learning_rate = self.schedule(remaining)
        batch = Batch.of(policy, rollout, *self.advantages(rollout, self.gae_lambda, credit=self.credit))
        whole = [torch.arange(len(batch))]
        figures = learn(self, batch, lambda micro: self._terms(policy, batch, micro), whole)
        figures["explained_variance"] = explained_variance(batch.values, batch.returns, batch.weights)
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    def _terms(self, policy: Policy, batch: Batch, micro: Tensor) -> Terms:
        evaluation, weights = batch.evaluate(policy, micro), batch.weights_of(micro)
        policy_loss = -masked_mean(evaluation.log_probs * batch.advantages[micro], weights)
        value_loss = 0.5 * masked_mean((evaluation.values - batch.returns[micro]).square(), weights)
        entropy = masked_mean(evaluation.entropies, weights)
        loss = policy_loss + self.value_coefficient * value_loss - self.entropy_coefficient * entropy
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
