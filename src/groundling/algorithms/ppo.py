"""Proximal policy optimisation, as GLAM grounds a language model with it."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from groundling.algorithms.advantages import generalized_advantage
from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.losses import PPOLoss, ppo_loss
from groundling.algorithms.rollout import Rollout, micro_batches
from groundling.errors import ConfigError, RunError
from groundling.policies.policy import Policy


@algorithms.register("ppo")
@dataclass
class PPO(Algorithm):
    """PPO (Schulman et al. 2017, arXiv 1707.06347); the defaults are GLAM's (arXiv 2302.02662, appendix)."""

    learning_rate: float = 1e-6
    """Adam's step size. 1e-6 suits hundreds of millions of parameters, about 1e-3 a million."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """"linear" lets the learning rate fall to 0 over the training."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-5
    epochs: int = 4
    """How often each rollout is gone through; usually 1 to 10."""
    minibatch_size: int = 64
    """Transitions per optimizer step."""
    micro_batch_size: int | None = None
    """Transitions per forward and backward pass; gradients accumulate to the same minibatch mean, so this
    changes memory and speed and nothing else. None: the whole minibatch."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.99
    """λ of generalised advantage estimation; usually 0.9 to 1."""
    clip_range: float = 0.2
    """ε of the policy's clipped ratio; usually 0.1 to 0.3."""
    value_clip_range: float | None = 0.2
    """How far a value may move from the old one without being clipped; null: no clipping."""
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus: raise it when the policy becomes certain too soon; usually 0 to 0.05."""
    max_grad_norm: float = 0.5
    normalize_advantages: bool = False
    """Shift and scale the rollout's advantages to mean 0 and deviation 1 (the original does not)."""
    target_kl: float | None = None
    """Stop going through a rollout once a minibatch is this far from the old policy; null: never."""

    optimizer: torch.optim.Adam = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        positive = (
            "learning_rate",
            "adam_epsilon",
            "epochs",
            "minibatch_size",
            "clip_range",
            "max_grad_norm",
        )
        for name in (*positive, "value_clip_range", "target_kl"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"algorithm.args.{name} must be greater than 0 and finite, got {value}")
        for name in ("value_coefficient", "entropy_coefficient"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"algorithm.args.{name} must be at least 0, got {getattr(self, name)}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"algorithm.args.{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"algorithm.args.{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.micro_batch_size is not None and not 1 <= self.micro_batch_size <= self.minibatch_size:
            raise ConfigError(
                f"algorithm.args.micro_batch_size must lie between 1 and minibatch_size "
                f"({self.minibatch_size}), got {self.micro_batch_size}"
            )

    def setup(self, policy: Policy) -> None:
        """Make Adam for the policy's trainable parameters."""
        self.optimizer = torch.optim.Adam(
            [p for p in policy.parameters() if p.requires_grad],
            lr=self.learning_rate,
            betas=(self.adam_beta1, self.adam_beta2),
            eps=self.adam_epsilon,
        )

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go ``epochs`` times through ``rollout`` in shuffled minibatches, one optimizer step for each.

        Returns:
            Means over the minibatches of ``loss``, ``policy_loss``, ``value_loss``, ``entropy``,
            ``approx_kl``, ``clip_fraction`` and ``grad_norm``, and the rollout's ``explained_variance``.

        Raises:
            RunError: a loss or gradient is NaN or infinite; the step that would have spoilt the weights is
                not taken.
        """
        learning_rate = self.learning_rate * (remaining if self.learning_rate_schedule == "linear" else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        batch = self._batch(policy, rollout)
        costs = policy.costs(batch.observations)
        figures: dict[str, list[float]] = defaultdict(list)
        for indices in self._minibatches(batch, generator):
            step = self._step(policy, batch, indices, costs)
            for name, value in step.items():
                figures[name].append(value)
            if self.target_kl is not None and step["approx_kl"] > self.target_kl:
                break
        means = {name: sum(values) / len(values) for name, values in figures.items()}
        means["explained_variance"] = _explained_variance(batch.values.flatten(), batch.returns.flatten())
        means["learning_rate"] = learning_rate
        return means

    def _batch(self, policy: Policy, rollout: Rollout) -> "_Batch":
        """The rollout with its advantages, cut into what the policy evaluates at once."""
        advantages, returns = generalized_advantage(
            rollout.rewards, rollout.values, rollout.dones, rollout.last_values, self.gamma, self.gae_lambda
        )
        if self.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        observations, transitions = rollout.elements(policy.recurrence)
        tensors = (rollout.actions, rollout.log_probs, rollout.values, advantages, returns)
        return _Batch(observations, *(t.flatten()[transitions].to(policy.device) for t in tensors))

    def _minibatches(self, batch: "_Batch", generator: torch.Generator) -> Iterator[Tensor]:
        """Of every epoch, all indices of the batch, shuffled and cut."""
        size = self._elements(self.minibatch_size, batch)
        for _ in range(self.epochs):
            yield from torch.randperm(len(batch.observations), generator=generator).split(size)

    @staticmethod
    def _elements(transitions: int, batch: "_Batch") -> int:
        """How many elements of the batch hold so many transitions; at least one."""
        return max(1, transitions // (batch.actions.numel() // len(batch.observations)))

    def _step(
        self, policy: Policy, batch: "_Batch", indices: Tensor, costs: Sequence[int] | None
    ) -> dict[str, float]:
        """One optimizer step on the minibatch ``indices``; gradients accumulate to its mean."""
        self.optimizer.zero_grad(set_to_none=True)
        figures = dict.fromkeys(_FIGURES, 0.0)
        size = self._elements(self.micro_batch_size or self.minibatch_size, batch)
        for micro in micro_batches(indices, size, costs, self.world):
            share = len(micro) / len(indices)
            loss = self._loss(policy, batch, micro)
            (loss.total * share).backward()
            for name, term in _FIGURES.items():
                figures[name] += share * getattr(loss, term).item()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.world.sum_gradients(parameters)
        figures = self.world.sum_figures(figures)
        figures["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).item()
        _check_finite(figures)
        self.optimizer.step()
        return figures

    def _loss(self, policy: Policy, batch: "_Batch", micro: Tensor) -> PPOLoss:
        evaluation = policy.evaluate([batch.observations[i] for i in micro.tolist()], batch.actions[micro])
        return ppo_loss(
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
        )


@dataclass
class _Batch:
    """Tensors ``(num_elements,)``, or of segments ``(num_elements, recurrence)``, on the policy's device."""

    observations: list[Any]
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


_FIGURES = {
    "loss": "total",
    "policy_loss": "policy",
    "value_loss": "value",
    "entropy": "entropy",
    "approx_kl": "approx_kl",
    "clip_fraction": "clip_fraction",
}
"""By the name they are logged under, the terms of `PPOLoss`."""


def _check_finite(figures: dict[str, float]) -> None:
    for name, value in figures.items():
        if not math.isfinite(value):
            raise RunError(
                f"{name} became {value}; training stopped before the weights were spoilt. Check that rewards are "
                "finite, then begin a new run from the last checkpoint (model.path=RUN/checkpoints/NNNNNN "
                "run_dir=NEW) with a lower algorithm.args.learning_rate or max_grad_norm, in float32"
            )


def _explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var[R - V] / Var[R]: 1 is a perfect value function, 0 no better than a constant."""
    variance = returns.var(correction=0)
    if variance <= 1e-12 * returns.square().mean():  # as good as constant: nothing to explain
        return 0.0
    return (1 - (returns - values).var(correction=0) / variance).item()
