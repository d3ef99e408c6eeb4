"""Proximal policy optimisation, and NLPO, which is PPO restricted to tokens that an older policy considers likely."""

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from groundling.algorithms.advantages import Credit, credit_refusal
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.critic import HeadInputs, detached, fit_head
from groundling.algorithms.losses import clipped_value_loss
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms, accumulate, learn
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.envs.text_env import WorldSpec
from groundling.fields import Ge, Gt, Le, OnlyWith
from groundling.policies.policy import Evaluated, Policy


@algorithms.register("ppo")
@dataclass
class PPO(ClippedOnPolicy):
    """PPO (Schulman et al. 2017, arXiv 1707.06347); the defaults are GLAM's (arXiv 2302.02662, appendix).
    L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)] + c_v ½ E[max((V-R)², (clip(V, V_old±ε_v)-R)²)] - c_e E[H]
    """

    epochs: Annotated[int, Ge(1)] = 4  # Passes over each rollout; usually 1 to 10
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.99  # λ of generalised advantage estimation; usually 0.9 to 1
    value_clip_range: Annotated[float | None, Gt(0)] = 0.2
    """Maximum change in a value before it is clipped; null disables clipping."""
    value_coefficient: Annotated[float, Ge(0)] = 1.0
    """Weight of the value loss (half the squared error); 1 corresponds to 0.5 in GLAM and Stable-Baselines3."""
    entropy_coefficient: Annotated[float, Ge(0)] = 0.01
    """Weight of the entropy bonus: raise it if the policy becomes deterministic too early; usually 0 to 0.05."""
    normalize_advantages: bool = False
    """Shift and scale the rollout's advantages to mean 0 and standard deviation 1 (GLAM does not)."""
    credit: Credit = "turn"
    """Advantages of generated tokens: one per turn ("turn"), or one per token ("token", "poad"; `token_advantages`)."""
    value_epochs: Annotated[int, Ge(0)] = 0
    """Extra epochs that train only the value head, on the hidden states of the last ``value_rollouts`` rollouts."""
    value_rollouts: Annotated[int, Ge(1), OnlyWith("value_epochs")] = 1
    value_warmup: Annotated[int, Ge(0), OnlyWith("value_epochs")] = 0
    """Number of initial updates that train only the value head, for ``value_epochs`` epochs each."""
    detach_values: bool = False
    """Train only the value head with the value loss, not the language model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._warmed_up = 0  # warm-up updates so far
        self._states: deque[tuple[Tensor, Tensor]] = deque(maxlen=self.value_rollouts)  # with returns

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        options = ("value_epochs", "detach_values")
        used = [name for name in options if getattr(self, name)]
        if used and not getattr(policy, "has_value_head", True):  # unknown for a factory function
            return f"{used[0]} needs a policy with a value head on a language model"
        return credit_refusal(self.credit, policy) or super().accepts(policy, args, world)

    def targets(self, rollout: Rollout) -> Targets:
        return self.generalized_advantages(rollout, self.gae_lambda, self.normalize_advantages, self.credit)

    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        terms = super().loss(evaluation, batch)
        value_loss = clipped_value_loss(
            evaluation.values, batch.values, batch.returns, clip_range=self.value_clip_range, mask=batch.weights
        )
        terms["value_loss"] = value_loss
        terms["loss"] = terms["policy_loss"] + self.value_coefficient * value_loss
        return terms

    def optimize(self, policy: Policy, batch: Batch, generator: torch.Generator) -> dict[str, float]:
        """Take one optimizer step on each minibatch of every epoch; then train the value head for ``value_epochs``."""
        if not self.detach_values and not self.value_epochs:
            return super().optimize(policy, batch, generator)
        head = policy.get_submodule("value_head")
        with detached(head) if self.detach_values else nullcontext():
            if not self.value_epochs:
                return super().optimize(policy, batch, generator)
            inputs = HeadInputs(batch, head)
            loss = inputs.recorded(partial(self.regularized, policy))
            if self._warmed_up < self.value_warmup:
                self._warmed_up += 1
                with torch.no_grad():
                    local_figures = accumulate(self, batch, loss, batch.index, [])
                figures = {**self.processes.sum_figures(local_figures), "grad_norm": 0.0}
            else:
                minibatches = inputs.numbered(self.minibatches(batch, generator))
                figures = learn(self, batch, loss, minibatches, self.target_kl)
        inputs.complete(self, policy)
        self._states.append(inputs.transitions())
        return figures | fit_head(self, head, self._states, self.minibatch_size, self.value_epochs, generator)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "warmed_up": self._warmed_up}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._warmed_up = state["warmed_up"]

    def tensors(self) -> dict[str, Tensor]:
        kept = enumerate(self._states)
        return {f"{i}.{name}": one for i, pair in kept for name, one in zip(("states", "returns"), pair, strict=True)}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        for i in range(len(tensors) // 2):
            self._states.append((tensors[f"{i}.states"], tensors[f"{i}.returns"]))


@algorithms.register("nlpo")
@dataclass
class NLPO(PPO):
    """NLPO (Ramamurthy et al. 2023, arXiv 2210.01241, section 4 and algorithm 1).
    The policy contains a mask model, an older copy of itself, and samples only tokens that the mask model considers
    likely. PPO's ratio and entropy use the masked distribution; the KL penalty uses the unmasked one, except in
    `ActionGeneratingPolicy`. Every μ updates, the mask model is replaced with a copy of the policy; RL4LMs' released
    code never replaces it.
    """

    target_update_iterations: Annotated[int, Ge(1)] = 20
    """μ: updates between refreshes of the mask model; 5 to 100 in RL4LMs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._updates = 0  # since the start of training

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if isinstance(policy, type) and not hasattr(policy, "refresh_mask"):
            return "it needs a policy with a token mask"
        if "mask_type" in inspect.signature(policy).parameters and args.get("mask_type") in (None, "topk"):
            return "it needs a mask model, an older copy of the policy (policy.args.mask_type=learned_top_p)"
        return super().accepts(policy, args, world)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Update as in PPO, and refresh the mask model every ``target_update_iterations`` updates."""
        age = self._updates % self.target_update_iterations
        figures = super().update(policy, rollout, generator=generator, remaining=remaining)
        self._updates += 1
        if self._updates % self.target_update_iterations == 0:
            masked: Any = policy  # see `accepts`
            masked.refresh_mask()
        return {**figures, "mask_age": age}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._updates = state["updates"]
