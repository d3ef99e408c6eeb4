"""The update shared by on-policy algorithms."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from groundling.algorithms.advantages import (
    Credit,
    explained_variance,
    generalized_advantage,
    standardise,
    token_advantages,
)
from groundling.algorithms.algorithm import Algorithm
from groundling.algorithms.losses import clipped_surrogate
from groundling.algorithms.optimisation import Schedule, Terms, learn, make_adamw, schedule_learning_rate
from groundling.algorithms.regularizers import ContrastiveLoss, EntropyBonus, GoalContrast, KLPenalty, Regularizer
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.envs.text_env import WorldSpec
from groundling.fields import Ge, Gt, Le, Lt, NoEffectOnResults, OnlyWith
from groundling.policies.policy import Evaluated, Policy

_ROUNDING = 1e-6  # Rounding error, in nats, of the log-ratio between a policy and a reference with equal weights


@dataclass
class OnPolicy(Algorithm):
    """Base class for on-policy algorithms; subclasses implement `setup`, `targets`, `loss` and `optimize`.
    The entropy bonus, KL penalty and contrastive losses are `regularizers` that can be added to every loss.
    """

    learning_rate: Annotated[float, Gt(0)] = 1e-6
    """The optimizer's step size: 1e-6 for hundreds of millions of parameters, about 1e-3 for a million."""
    learning_rate_schedule: Schedule = "constant"
    """"linear" and "cosine" decay the learning rate to 0 over training."""
    warmup: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Fraction of training over which the learning rate rises from a tenth of its maximum."""
    micro_batch_size: Annotated[int | None, Ge(1), NoEffectOnResults] = None
    """Steps per forward and backward pass, halved when memory runs out. Gradients accumulate to the same mean, so it
    affects only memory and speed. If null, each optimizer step is computed in one pass."""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99  # Discount factor
    entropy_coefficient: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus: raise it if the policy becomes deterministic too early; usually 0 to 0.05."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    kl_coefficient: Annotated[float, Ge(0)] = 0.0
    """Weight of the penalty for divergence from the policy's reference; 0 disables it. Usually 0.001 to 0.2."""
    kl_target: Annotated[float | None, Gt(0), OnlyWith("kl_coefficient")] = None
    """Target KL per step; kl_coefficient is adapted to reach it. If null, the coefficient is constant."""
    normalize_rewards: bool = False
    """Shift and scale each rollout's rewards, including the KL penalty, to mean 0 and standard deviation 1."""
    contrast_coefficient: Annotated[float, Ge(0)] = 0.0
    """Weight of a loss that aligns hidden states across prompts (see `ContrastiveLoss`); 0 disables it."""
    contrast_prompts: Annotated[Sequence[str], OnlyWith("contrast_coefficient")] = ()  # Ids of at least two prompts
    goal_coefficient: Annotated[float, Ge(0)] = 0.0
    """Weight of a loss that makes actions depend on the goal (see `GoalContrast`); 0 disables it."""
    goal_margin: Annotated[float, Gt(0), OnlyWith("goal_coefficient")] = 0.1
    """Margin in nats: the loss is 0 where KL(π(· | own goal) ‖ π(· | other goal)) is larger."""

    kl_in_loss: ClassVar[bool] = False  # Add the KL penalty to the loss instead of subtracting it from the rewards

    def __post_init__(self) -> None:
        self.kl = KLPenalty(self.kl_coefficient, self.kl_target)
        self.regularizers: list[Regularizer] = [EntropyBonus(-self.entropy_coefficient)]
        if self.kl_in_loss and self.kl_coefficient:
            self.regularizers.append(self.kl)
        if self.contrast_coefficient:
            self.regularizers.append(ContrastiveLoss(self.contrast_coefficient, self.contrast_prompts))
        if self.goal_coefficient:
            self.regularizers.append(GoalContrast(self.goal_coefficient, self.goal_margin))

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        for regularizer in (self.kl, *self.regularizers):
            if reason := regularizer.accepts(policy, args, world):
                return reason
        return super().accepts(policy, args, world)

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coefficient": self.kl.coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl.coefficient = state["kl_coefficient"]

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Learn from one rollout; return the metrics of `optimize`, the critic and the KL, and ``learning_rate``.
        Raise `ConfigError` if reference log-probabilities are missing or a group has only one episode, and
        `RunError` if a metric is NaN.
        """
        learning_rate = schedule_learning_rate(self, remaining)
        targets = self.targets(rollout)
        for regularizer in self.regularizers:
            targets.more |= regularizer.targets(rollout)
        batch = Batch.of(policy, rollout, targets)
        for regularizer in self.regularizers:
            regularizer.prepare(policy, batch, generator)
        figures = self.optimize(policy, batch, generator)
        if self.needs_values:
            figures["explained_variance"] = explained_variance(batch.values, batch.returns, batch.weights)
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    @abstractmethod
    def targets(self, rollout: Rollout) -> Targets:
        """Return the advantages, returns and other tensors that `loss` needs for each step."""

    @abstractmethod
    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        """Return the terms of a micro-batch's loss without regularizers, given the current policy's ``evaluation``."""

    @abstractmethod
    def optimize(self, policy: Policy, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Take the optimizer steps of an update, and return their mean metrics."""

    def regularized(self, policy: Policy, batch: Batch, evaluation: Evaluated | None = None) -> Terms:
        """Return `loss` plus the regularizers, and each one's value by name; ``evaluation`` is computed if None."""
        evaluation = evaluation or policy.evaluate(batch.observations, batch.actions)
        terms = self.loss(evaluation, batch)
        for regularizer in self.regularizers:
            value = terms[regularizer.name] = regularizer.value(policy, evaluation, batch)
            terms["loss"] = terms["loss"] + regularizer.coefficient * regularizer.scale * value
        return terms

    def rewards(self, rollout: Rollout) -> Tensor:
        """Return the rewards to learn from, ``(num_steps, num_envs)``, penalised and normalised as configured.
        `Rollout.truncation_values` are added last, since the critic estimates them in normalised units.
        """
        penalty = KLPenalty(0.0) if self.kl_in_loss else self.kl
        rewards = penalty.rewards(rollout)
        if self.normalize_rewards:
            rewards = standardise(rewards, rollout.mask, _ROUNDING * penalty.coefficient)
        values = rollout.truncation_values
        if values is None:
            return rewards
        return rewards + (values if rollout.mask is None else values * rollout.mask)

    def generalized_advantages(
        self, rollout: Rollout, gae_lambda: float, normalize: bool = False, credit: Credit = "turn"
    ) -> Targets:
        """Return targets by generalised advantage estimation; ``normalize`` standardises the advantages."""
        rewards, mask = self.rewards(rollout), rollout.mask
        tokens, end = rollout.tokens, (rollout.dones, rollout.last_values, self.gamma, gae_lambda)
        if credit == "turn" or tokens is None:
            advantages, returns = generalized_advantage(rewards, rollout.values, *end)
        else:
            mask = tokens.mask if mask is None else tokens.mask & mask[..., None]
            token_gamma = 1.0 if credit == "poad" else self.gamma
            advantages, returns = token_advantages(rewards, tokens.values, tokens.mask, *end, token_gamma)
        return Targets(standardise(advantages, mask) if normalize else advantages, returns)


@dataclass
class ClippedOnPolicy(OnPolicy):
    """Base class for training on shuffled minibatches for several epochs with AdamW and PPO's clipped surrogate.
    L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)], ρ = π(a) / π_old(a)
    """

    adam_beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    adam_epsilon: Annotated[float, Gt(0)] = 1e-5
    weight_decay: Annotated[float, Ge(0)] = 0.0  # AdamW's weight decay, for matrices only
    epochs: Annotated[int, Ge(1)] = 1  # Passes over each rollout; usually 1 to 10
    minibatch_size: Annotated[int, Ge(1)] = 64
    """Steps per optimizer step. Texts are not split: a minibatch has at least one, and this many tokens on average."""
    clip_range: Annotated[float, Gt(0)] = 0.2  # ε of the policy's clipped ratio; usually 0.1 to 0.3
    target_kl: Annotated[float | None, Gt(0)] = None
    """Stop an update once a minibatch's KL from the old policy exceeds this value; null disables early stopping."""
    advantage_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Learn only from the fraction of a rollout's steps with the largest |advantage|; 0.5 roughly halves the time."""

    def setup(self, policy: Policy) -> None:
        betas = (self.adam_beta1, self.adam_beta2)
        self.optimizer = make_adamw(policy, self.learning_rate, betas, self.adam_epsilon, self.weight_decay)

    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        surrogate = clipped_surrogate(
            evaluation.log_probs, batch.log_probs, batch.advantages, clip_range=self.clip_range, mask=batch.weights
        )
        return {
            "loss": surrogate.loss,
            "policy_loss": surrogate.loss,
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
        }

    def optimize(self, policy: Policy, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Take one optimizer step on each minibatch of every epoch, until ``target_kl`` is exceeded."""
        return learn(
            self, batch, partial(self.regularized, policy), self.minibatches(batch, generator), self.target_kl
        )

    def minibatches(self, batch: Batch, generator: torch.Generator) -> Iterable[Tensor]:
        """Return the shuffled minibatches of all epochs, over the selected elements."""
        chosen = batch.largest_advantages(self.advantage_share) if self.advantage_share < 1 else None
        if "kept" in batch.more:  # set by `targets`: 1 for the steps to learn from
            chosen = batch.more["kept"].view(len(batch), -1).amax(1) > 0
        return batch.minibatches(self.minibatch_size, self.epochs, generator, chosen)
