"""Proximal policy optimisation, as GLAM grounds a language model with it."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from groundling.algorithms.advantages import explained_variance
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.credit import Credit
from groundling.algorithms.critic import CriticMemory, HeadInputs, detached
from groundling.algorithms.losses import ppo_loss
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms, accumulate, give_own_rate
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
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
    value_epochs: int = 0
    """Passes of the value head alone, after the policy's, over the states of the last ``value_rollouts`` rollouts."""
    value_rollouts: int = 1
    value_warmup: int = 0
    """Updates at the start in which only the value head learns, by ``value_epochs``."""
    value_learning_rate: float | None = None
    """The value head's step size; null: ``learning_rate``. Both follow one schedule."""
    detach_values: bool = False
    """Keep the value loss out of the language model: it trains the value head alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("value_warmup", "value_rollouts"):
            if not self.value_epochs and getattr(self, name) != vars(PPO)[name]:
                raise ConfigError(
                    f"algorithm.args.{name}={getattr(self, name)} does nothing without value_epochs: set it to 1 or "
                    f"more, or leave {name} out"
                )
        self._warmed_up = 0  # updates
        self._memory = CriticMemory(self.value_rollouts)

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        options = ("value_epochs", "value_learning_rate", "detach_values")
        used = [name for name in options if getattr(self, name)]
        if used and not getattr(
            policy, "has_value_head", True
        ):  # a function that makes a policy does not say
            return f"{used[0]} is for policies with a value head on a language model"
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        """Make AdamW, with a group of its own for a value head that has its own learning rate."""
        super().setup(policy)
        if self.value_learning_rate is not None:
            factor = self.value_learning_rate / self.learning_rate
            give_own_rate(self.optimizer, [*_value_head(policy).parameters()], factor)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "warmed_up": self._warmed_up}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._warmed_up = state.get("warmed_up", 0)

    def tensors(self) -> dict[str, Tensor]:
        return self._memory.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._memory.load_tensors(tensors)

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
        figures = self._learn(policy, batch, generator)
        figures["explained_variance"] = explained_variance(batch.values, batch.returns, batch.weights)
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    def _learn(self, policy: Policy, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        def terms_of(micro: Tensor) -> Terms:
            return self._terms(policy, batch, micro)

        with detached(_value_head(policy)) if self.detach_values else nullcontext():
            if not self.value_epochs:
                return self.go_through(policy, batch, terms_of, generator)
            inputs = HeadInputs(batch, _value_head(policy))
            with inputs.recorded():
                if self._warmed_up < self.value_warmup:
                    self._warmed_up += 1
                    with torch.no_grad():
                        watched = inputs.watched(terms_of)
                        local_figures = accumulate(self, batch, watched, torch.arange(len(batch)), [])
                    figures = {**self.processes.sum_figures(local_figures), "grad_norm": 0.0}
                else:
                    figures = self.go_through(policy, batch, terms_of, generator, inputs)
        inputs.complete(self, policy)
        self._memory.add(*inputs.transitions())
        fitted = self._memory.fit(
            self, _value_head(policy), self.minibatch_size, self.value_epochs, generator
        )
        return figures | fitted

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


def _value_head(policy: Policy) -> nn.Module:
    head = getattr(policy, "value_head", None)
    if not isinstance(head, nn.Module):
        raise ConfigError(
            f"the options value_* of the algorithm train a module value_head, which this {type(policy).__name__} does "
            "not have: leave them out"
        )
    return head
