"""Options that algorithms which learn from the policy's own rollouts have in common."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.advantages import generalized_advantage, standardise
from groundling.algorithms.algorithm import Algorithm, is_other
from groundling.algorithms.batch import Batch
from groundling.algorithms.contrast import with_contrast
from groundling.algorithms.credit import Credit, token_advantages
from groundling.algorithms.critic import HeadInputs
from groundling.algorithms.kl import KLPenalty
from groundling.algorithms.losses import clipped_surrogate, masked_mean
from groundling.algorithms.optimisation import (
    Schedule,
    Terms,
    check_options,
    learn,
    make_adamw,
    set_learning_rate,
    share_of_rate,
)
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.action_text import ActionTextPolicy
from groundling.policies.policy import Evaluation, Policy
from groundling.prompts import BLANK, PromptReader, check_prompts

_ROUNDING = 1e-6
"""Nats: so far may log-probabilities lie apart that policy and reference compute of one text with equal weights."""


@dataclass
class OnPolicy(Algorithm):
    """Options, not behaviour: each algorithm has an ``update`` of its own, on the functions of `optimisation`."""

    learning_rate: float = 1e-6
    """The optimizer's step size. 1e-6 suits hundreds of millions of parameters, about 1e-3 a million."""
    learning_rate_schedule: Schedule = "constant"
    """"linear" or "cosine" let the learning rate fall to 0 over the training."""
    warmup: float = 0.0
    """The share of the training in which the learning rate rises from a tenth."""
    micro_batch_size: int | None = None
    """Steps per forward and backward pass; gradients accumulate to the same mean, so this changes memory and speed and
    nothing else. It is halved where memory does not suffice. None: as many as the optimizer steps on."""
    gamma: float = 0.99
    """Discount factor."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus: raise it when the policy becomes certain too soon; usually 0 to 0.05."""
    max_grad_norm: float = 0.5
    kl_coefficient: float = 0.0
    """Weight of the penalty for moving away from the policy's reference; 0: none. Usually 0.001 to 0.2."""
    kl_target: float | None = None
    """The KL per step that kl_coefficient is steered to; null: it is constant."""
    normalize_rewards: bool = False
    """Shift and scale each rollout's rewards, the KL penalty among them, to mean 0 and deviation 1."""

    optimizer: torch.optim.Optimizer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        check_options(self)
        self.kl = KLPenalty(self.kl_coefficient, self.kl_target)

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        credit = getattr(self, "credit", "turn")
        if credit != "turn" and isinstance(policy, type) and not getattr(policy, "writes_turns", False):
            return (
                f"credit={credit} goes to the tokens of turns, which that policy does not write (leave it out, or set "
                "policy.id=action_generating)"
            )
        if self.kl_coefficient and isinstance(policy, type) and not _has_reference(policy):
            return f"kl_coefficient={self.kl_coefficient} needs a reference to compare the policy to"
        return super().accepts(policy, args, world)

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coefficient": self.kl.coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl.coefficient = state.get("kl_coefficient", self.kl_coefficient)

    def rewards(self, rollout: Rollout, penalised: bool = True) -> Tensor:
        """``(num_steps, num_envs)``: what is learnt from; penalised and normalised as the options say, and then with
        `Rollout.truncation_values`, which the critic tells in these units.

        Args:
            rollout: What was gathered.
            penalised: Whether the KL penalty is part of the rewards.
        """
        penalty = self.kl if penalised else KLPenalty(0.0)
        rewards = penalty.rewards(rollout)
        if self.normalize_rewards:
            rewards = standardise(rewards, rollout.mask, _ROUNDING * abs(penalty.coefficient))
        values = rollout.truncation_values
        if values is None:
            return rewards
        return rewards + (values if rollout.mask is None else values * rollout.mask)

    def advantages(
        self, rollout: Rollout, gae_lambda: float, normalize: bool = False, credit: Credit = "turn"
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns by generalised advantage estimation, each ``(num_steps, num_envs)``; of the tokens of
        turns ``(num_steps, num_envs, num_tokens)``.

        Args:
            rollout: What was gathered.
            gae_lambda: λ.
            normalize: Shift and scale the advantages of all steps that count to mean 0 and deviation 1.
            credit: Whose advantages those of a turn's tokens are.
        """
        rewards, mask = self.rewards(rollout), rollout.mask
        if credit == "turn" or rollout.tokens is None:
            advantages, returns = generalized_advantage(
                rewards, rollout.values, rollout.dones, rollout.last_values, self.gamma, gae_lambda
            )
        else:
            mask = rollout.tokens.mask if mask is None else rollout.tokens.mask & mask[..., None]
            advantages, returns = token_advantages(
                rewards,
                rollout.tokens.values,
                rollout.tokens.mask,
                rollout.dones,
                rollout.last_values,
                self.gamma,
                gae_lambda,
                token_gamma=1.0 if credit == "poad" else self.gamma,
            )
        return (standardise(advantages, mask) if normalize else advantages), returns

    def schedule(self, remaining: float) -> float:
        """Set the learning rate of an update, and return it."""
        rate = self.learning_rate * share_of_rate(self.learning_rate_schedule, self.warmup, remaining)
        set_learning_rate(self.optimizer, rate)
        return rate


def _has_reference(policy: type[Policy]) -> bool:
    """Whether a policy is made with a reference, or is its own."""
    return "reference" in inspect.signature(policy).parameters or "reference_log_probs" in vars(policy)


@dataclass
class ClippedOnPolicy(OnPolicy):
    """Options of those that go through a rollout in minibatches, with Adam and PPO's clipped ratio."""

    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-5
    weight_decay: float = 0.0
    """AdamW's; of matrices alone."""
    epochs: int = 1
    """How often each rollout is gone through; usually 1 to 10."""
    minibatch_size: int = 64
    """Steps per optimizer step; of whole sequences as many as hold so many on average, and at least one."""
    clip_range: float = 0.2
    """ε of the policy's clipped ratio; usually 0.1 to 0.3."""
    target_kl: float | None = None
    """Stop going through a rollout once a minibatch is this far from the old policy; null: never."""
    advantage_share: float = 1.0
    """Learn only from the share of a rollout's steps with the largest |advantage|; 0.5 about halves
    the work of learning."""
    contrast_coefficient: float = 0.0
    """Weight of a loss that brings together what one observation is read as in several prompts (see `with_contrast`);
    0: none."""
    contrast_prompts: Sequence[str] = ()
    """Ids of these prompts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contrast_coefficient:
            check_prompts(self.contrast_prompts, "algorithm.args.contrast_prompts", 2)
        elif self.contrast_prompts:
            raise ConfigError(
                f"algorithm.args.contrast_prompts={list(self.contrast_prompts)} does nothing without "
                "contrast_coefficient: set it above 0, or leave them out"
            )

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if self.contrast_coefficient and is_other(policy, ActionTextPolicy):
            return (
                f"contrast_coefficient={self.contrast_coefficient} is for policies whose model reads a prompt and "
                "actions' texts"
            )
        if self.contrast_coefficient and args.get("system") is not None:
            # A text has no system prompt, which is said here before anything is loaded.
            PromptReader(self.contrast_prompts, world.language, system=args["system"]).forms(BLANK)
        return super().accepts(policy, args, world)

    def setup(self, policy: Policy) -> None:
        """Make AdamW, which without weight_decay is Adam, for the policy's trainable parameters."""
        betas = (self.adam_beta1, self.adam_beta2)
        self.optimizer = make_adamw(policy, self.learning_rate, betas, self.adam_epsilon, self.weight_decay)

    def go_through(
        self,
        policy: Policy,
        batch: Batch,
        terms_of: Callable[[Tensor], Terms],
        generator: torch.Generator,
        inputs: HeadInputs | None = None,
        chosen: Tensor | None = None,
    ) -> dict[str, float]:
        """One step on each shuffled minibatch of every epoch; see `learn` for figures and errors.

        Args:
            policy, batch, terms_of: As of `learn`.
            generator: Shuffles.
            inputs: Records the inputs of the value head; None: nothing is recorded.
            chosen: Bool ``(num_elements,)``: elements to learn from, before ``advantage_share``; None: all.
        """
        if self.contrast_coefficient:
            contrast = self.contrast_coefficient, self.contrast_prompts
            terms_of = with_contrast(terms_of, *contrast, policy, batch, generator)
        minibatches = self.minibatches(batch, generator, chosen)
        if inputs is not None:
            minibatches, terms_of = inputs.numbered(minibatches), inputs.watched(terms_of)
        return learn(self, batch, terms_of, minibatches, self.target_kl)

    def minibatches(
        self, batch: Batch, generator: torch.Generator, chosen: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Shuffled minibatches of all epochs, of the elements that the options choose; arguments as of `go_through`."""
        if self.advantage_share < 1:
            chosen = batch.largest_advantages(self.advantage_share, chosen)
        return batch.minibatches(self.minibatch_size, self.epochs, generator, chosen)

    def policy_terms(self, batch: Batch, micro: Tensor, evaluation: Evaluation) -> dict[str, Tensor]:
        """The loss of those without a value function: -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)] - c_e E[H].

        Args:
            batch: What is learnt from.
            micro: Indices of some of its elements.
            evaluation: Of those by the present policy.
        """
        weights = batch.weights_of(micro)
        surrogate = clipped_surrogate(
            evaluation.log_probs,
            batch.log_probs[micro],
            batch.advantages[micro],
            clip_range=self.clip_range,
            mask=weights,
        )
        entropy = masked_mean(evaluation.entropies, weights)
        return {
            "loss": surrogate.policy - self.entropy_coefficient * entropy,
            "policy_loss": surrogate.policy,
            "entropy": entropy,
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
        }
