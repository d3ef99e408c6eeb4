"""Group relative policy optimisation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.advantages import group_relative, most_uncertain, returns_to_go
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.kl import reference_kl
from groundling.algorithms.losses import kl_estimate, masked_mean
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms
from groundling.algorithms.rollout import Rollout
from groundling.envs.spec import WorldSpec
from groundling.policies.policy import Policy


@algorithms.register("grpo")
@dataclass
class GRPO(ClippedOnPolicy):
    """GRPO (Shao et al. 2024, arXiv 2402.03300, equations 3 and 4).

    Â_i = (R_i - mean R) / std R over the answers to a prompt,
    L = -E_i[1/|o_i| Σ_t min(ρ Â, clip(ρ, 1-ε, 1+ε) Â) - β (exp(-d) + d - 1)],  d = log π - log π_ref, before any filter

    β is kl_coefficient: the penalty is part of the loss here, and not of the rewards; 0.04 in the paper, 0 in most of
    what followed it. Of an env's rollout the mean is over steps, or over the tokens of all turns, and R what an episode
    gave in all, discounted.
    """

    gamma: float = 1.0
    """Discount factor; 1 in the paper."""
    needs_values = False
    compares = True
    normalize_std: bool = True
    """Divide by the group's deviation; false: the advantages of Dr. GRPO (Liu et al. 2025, arXiv 2503.20783)."""
    group_share: float = 1.0
    """Learn only from the share of the groups whose returns deviate most, as StarPO-S (Wang et al. 2025, arXiv
    2504.20073): equal returns teach nothing."""
    mean_of_sequences: bool = True
    """The mean of the sequences' means, as in the paper, in which a long answer's tokens count less; false: of all of
    a minibatch's tokens, as in DAPO (Yu et al. 2025, arXiv 2503.14476). Dr. GRPO divides by a constant instead."""

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if not self.mean_of_sequences and world.action != "token":
            return (
                "mean_of_sequences=false is for texts: in an env the mean is over steps or tokens anyway, so "
                "leave it out"
            )
        if self.group_share < 1 and world.group_size is None:
            return f"group_share={self.group_share} is for several groups of episodes (set world.group_size)"
        return super().accepts(policy, args, world)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go ``epochs`` times through ``rollout`` in shuffled minibatches, one optimizer step for each.

        Returns:
            Means over the minibatches of ``loss``, ``policy_loss``, ``entropy``, ``approx_kl``, ``clip_fraction`` and
            ``grad_norm``; with a penalty also of ``reference_kl``.

        Raises:
            ConfigError: a prompt was answered only once, or a penalty has no reference.
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        learning_rate = self.schedule(remaining)
        rewards = self.rewards(rollout, penalised=False)
        returns = returns_to_go(rewards, rollout.dones, self.gamma)
        advantages = self.compare(rollout, rewards, returns)
        more = self._reference(rollout)
        if self.group_share < 1:
            more["chosen"] = most_uncertain(rollout, returns, self.group_share)
        batch = Batch.of(policy, rollout, advantages, returns, **more)
        chosen = batch.more.get("chosen")
        if chosen is not None and chosen.ndim > 1:  # the tokens of an element are of one group
            chosen = chosen.any(1)
        if batch.weights is not None and rollout.sequences and self.mean_of_sequences:
            batch.weights = batch.weights / batch.weights.sum(-1, keepdim=True).clamp(min=1)
        figures = self.go_through(
            policy, batch, lambda micro: self._terms(policy, batch, micro), generator, chosen=chosen
        )
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    def compare(self, rollout: Rollout, rewards: Tensor, returns: Tensor) -> Tensor:
        """Advantages ``(num_steps, num_envs)``.

        Args:
            rollout: Whose episodes are compared.
            rewards: ``(num_steps, num_envs)``: what is learnt from.
            returns: ``(num_steps, num_envs)``: what is left to gain, discounted.
        """
        return group_relative(rollout, returns, self.normalize_std)

    def _reference(self, rollout: Rollout) -> dict[str, Tensor]:
        """The reference's log-probabilities of the actions, ``(num_steps, num_envs)``, or of the tokens of turns; none
        without a penalty.
        """
        if not self.kl.coefficient:
            return {}
        kl = reference_kl(rollout, self.kl.coefficient)
        if rollout.tokens is not None and rollout.tokens.kl is not None:
            return {"reference": rollout.tokens.log_probs - rollout.tokens.kl}
        raw = rollout.log_probs if rollout.raw_log_probs is None else rollout.raw_log_probs
        return {"reference": raw - kl}

    def _terms(self, policy: Policy, batch: Batch, micro: Tensor) -> Terms:
        evaluation, weights = batch.evaluate(policy, micro), batch.weights_of(micro)
        terms = self.policy_terms(batch, micro, evaluation)
        if self.kl.coefficient:
            log_ratio = evaluation.raw_log_probs() - batch.more["reference"][micro]
            if weights is not None:
                log_ratio = log_ratio.masked_fill(weights == 0, 0.0)
            terms["reference_kl"] = masked_mean(kl_estimate(log_ratio), weights)
            terms["loss"] = terms["loss"] + self.kl.coefficient * terms["reference_kl"]
        return terms
