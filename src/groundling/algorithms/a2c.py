"""Advantage actor-critic: one optimizer step per rollout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch

from groundling.algorithms.advantages import Credit, credit_refusal
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.losses import clipped_value_loss, masked_mean
from groundling.algorithms.on_policy import OnPolicy
from groundling.algorithms.optimisation import Terms, learn, trainable, whole_and_parts
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.envs.text_env import WorldSpec
from groundling.fields import Ge, Gt, Le, Lt
from groundling.policies.policy import Evaluated, Policy


@algorithms.register("a2c")
@dataclass
class A2C(OnPolicy):
    """Synchronous A2C (Mnih et al. 2016, arXiv 1602.01783), with Stable-Baselines3's defaults.
    L = -E[log π(a) Â] + c_v ½ E[(V - R)²] - c_e E[H]
    """

    learning_rate: Annotated[float, Gt(0)] = 7e-4  # RMSprop's step size
    rms_alpha: Annotated[float, Ge(0), Lt(1)] = 0.99  # RMSprop's smoothing constant
    rms_epsilon: Annotated[float, Gt(0)] = 1e-5
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 1.0
    """λ of generalised advantage estimation. With 1, advantages are returns minus values."""
    value_coefficient: Annotated[float, Ge(0)] = 1.0
    """Weight of the value loss (half the squared error); 1.0 corresponds to 0.5 in Stable-Baselines3."""
    credit: Credit = "turn"
    """Advantages of generated tokens: one per turn ("turn"), or one per token ("token", "poad"; `token_advantages`)."""

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        return credit_refusal(self.credit, policy) or super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        self.optimizer = torch.optim.RMSprop(
            [{"params": group} for group in whole_and_parts(trainable(policy))],
            lr=self.learning_rate,
            alpha=self.rms_alpha,
            eps=self.rms_epsilon,
        )

    def targets(self, rollout: Rollout) -> Targets:
        return self.generalized_advantages(rollout, self.gae_lambda, credit=self.credit)

    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        policy_loss = -masked_mean(evaluation.log_probs * batch.advantages, batch.weights)
        value_loss = clipped_value_loss(evaluation.values, batch.values, batch.returns, mask=batch.weights)
        loss = policy_loss + self.value_coefficient * value_loss
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}

    def optimize(self, policy: Policy, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Take one optimizer step on the whole rollout."""
        return learn(self, batch, partial(self.regularized, policy), [torch.arange(len(batch))])
