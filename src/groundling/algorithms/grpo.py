"""Policy gradients without a value function: REINFORCE++, RLOO, GRPO and GiGPO."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from groundling.algorithms.advantages import (
    ScaleRewards,
    anchored,
    group_relative,
    leave_one_out,
    returns_to_go,
    standardise,
    varied_groups,
)
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.losses import cispo_surrogate, clipped_surrogate
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.fields import Ge, Gt, Le
from groundling.policies.policy import Evaluated, Policy

LossType = Literal["grpo", "bnpo", "dapo", "dr_grpo", "cispo"]
_CISPO_MAX_RATIO = 5.0  # ScaleRL's (arXiv 2510.13786) and TRL's recommendation


@algorithms.register("reinforce_pp")
@dataclass
class ReinforcePlusPlus(ClippedOnPolicy):
    """REINFORCE++ (Hu 2025, arXiv 2501.03262, section 3).
    A_t = r - β Σ_{i≥t} KL(i),  Â = (A - mean A) / std A over all tokens,  L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)]
    where β is the kl_coefficient, and KL(i) = log π - log π_ref of token i.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0  # Discount factor; 1 in the paper
    needs_values = False

    def targets(self, rollout: Rollout) -> Targets:
        returns = returns_to_go(self.rewards(rollout), rollout.dones, self.gamma)
        return Targets(standardise(returns, rollout.mask), returns)


@algorithms.register("rloo")
@dataclass
class RLOO(ClippedOnPolicy):
    """RLOO (Ahmadian et al. 2024, arXiv 2402.14740, section 2.3): the baseline is the other answers' mean return.
    Â_i = R_i - 1/(k-1) Σ_{j≠i} R_j,  L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)], whose gradient is REINFORCE's at ρ = 1

    R is the return to go of rewards minus the KL penalty. The loss is a mean over tokens; the paper's is over answers.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0  # Discount factor; 1 in the paper
    needs_values = False
    compares_episodes = True

    def targets(self, rollout: Rollout) -> Targets:
        returns = returns_to_go(self.rewards(rollout), rollout.dones, self.gamma)
        return Targets(leave_one_out(rollout, returns), returns)


@algorithms.register("grpo")
@dataclass
class GRPO(ClippedOnPolicy):
    """GRPO (Shao et al. 2024, arXiv 2402.03300, equations 3 and 4).
    Â_i = (R_i - mean R) / std R over the answers to a prompt,
    L = -E_i[1/|o_i| Σ_t min(ρ Â, clip(ρ, 1-ε, 1+ε) Â) - β (exp(-d) + d - 1)],  d = log π - log π_ref (unfiltered)

    β is the kl_coefficient, 0.04 in the paper and 0 in most later work; the penalty is in the loss, not the rewards.
    In envs, the mean is over steps, or over the tokens of all turns, and R is an episode's discounted return.
    Options select the losses of DAPO, Dr. GRPO, GSPO and CISPO, as in TRL 1.16's ``GRPOConfig``.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 1.0  # Discount factor; 1 in the paper
    loss_type: LossType = "grpo"
    """Divisor of the sum over a minibatch's tokens. "grpo": each text's length, then the number of texts, so tokens of
    long texts weigh less. "bnpo": the number of tokens. "dapo" (arXiv 2503.14476): texts × the rollout's mean length.
    "dr_grpo" (arXiv 2503.20783): texts × world.num_tokens. "cispo" (arXiv 2506.13585) divides like "dapo", and bounds
    the weight of each token instead of clipping its loss. Only "grpo" and "cispo" apply to envs."""
    scale_rewards: ScaleRewards = "group"
    """Divide advantages by the standard deviation of the "group" or the whole "batch" (arXiv 2508.08221), or do not
    scale them ("none"), as in Dr. GRPO."""
    clip_range_high: Annotated[float | None, Gt(0)] = None
    """The ratio's upper bound minus 1: 0.28 in DAPO. If null, clip_range is used or, for cispo, 4 (usually 3 to 7)."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """"sequence": all tokens of a text or turn share their mean ratio, as in GSPO (arXiv 2507.18071), with
    clip_range=3e-4 and clip_range_high=4e-4."""
    mask_truncated_completions: bool = False
    """Ignore texts that reach world.num_tokens without an end token (DAPO), except in their group's statistics."""
    group_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Learn only from the fraction of groups whose returns have the largest variance (`varied_groups`)."""
    needs_values = False
    compares_episodes = True
    kl_in_loss = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss_type == "cispo" and self.clip_range != ClippedOnPolicy.clip_range:
            raise ConfigError(
                f"clip_range={self.clip_range} does nothing with loss_type=cispo, which bounds the ratio only from "
                "above: set clip_range_high instead"
            )
        if self.group_share < 1 and self.advantage_share < 1:
            raise ConfigError(
                f"advantage_share={self.advantage_share} and group_share both select steps: set only one"
            )

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if world.action != "token":
            if self.loss_type not in ("grpo", "cispo"):
                return f"loss_type={self.loss_type} applies only to texts: in an env the mean is over steps or tokens"
            if self.mask_truncated_completions:
                return "mask_truncated_completions=true applies only to texts (leave it out)"
            if self.group_share < 1 and world.group_size is None:
                return f"group_share={self.group_share} needs several groups of episodes: set world.group_size"
            if self.importance_sampling_level == "sequence" and not getattr(policy, "writes_turns", True):
                return "importance_sampling_level=sequence needs a policy that generates texts or turns (leave it out)"
        return super().accepts(policy, args, world)

    def targets(self, rollout: Rollout) -> Targets:
        rewards = self.rewards(rollout)
        returns = returns_to_go(rewards, rollout.dones, self.gamma)
        targets = Targets(self.compare(rollout, rewards, returns), returns)
        if rollout.sequences and rollout.mask is not None:
            counted = rollout.mask.to(rewards.dtype)  # (num_tokens, num_sequences)
            if self.mask_truncated_completions and rollout.truncated is not None:
                counted = counted * ~rollout.truncated
            targets.weights = counted / counted.sum(0).clamp(min=1) if self.loss_type == "grpo" else counted
        if self.group_share < 1:
            targets.more["kept"] = varied_groups(rollout, returns, self.group_share).to(rewards.dtype)
        return targets

    def compare(self, rollout: Rollout, rewards: Tensor, returns: Tensor) -> Tensor:
        """Return advantages within groups from discounted returns to go; all tensors are ``(num_steps, num_envs)``."""
        return group_relative(rollout, returns, self.scale_rewards)

    def minibatches(self, batch: Batch, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the minibatches, and set the scale of the loss and KL penalty for each."""
        scales = _scales(batch, self.loss_type)
        for indices in super().minibatches(batch, generator):
            self.kl.scale = float(scales[indices].mean())
            yield indices

    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        compared = evaluation.log_probs, batch.log_probs, batch.advantages
        by_sequence, mask = self.importance_sampling_level == "sequence", batch.weights
        max_ratio = None if self.clip_range_high is None else 1 + self.clip_range_high
        if self.loss_type == "cispo":
            max_ratio = max_ratio or _CISPO_MAX_RATIO
            surrogate = cispo_surrogate(*compared, max_ratio=max_ratio, by_sequence=by_sequence, mask=mask)
        else:
            surrogate = clipped_surrogate(
                *compared, clip_range=self.clip_range, max_ratio=max_ratio, by_sequence=by_sequence, mask=mask
            )
        return {
            "loss": self.kl.scale * surrogate.loss,
            "policy_loss": surrogate.loss,
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
        }


def _scales(batch: Batch, loss_type: LossType) -> Tensor:
    """Return factors ``(num_elements,)`` whose mean over a minibatch scales its mean loss to that of ``loss_type``.
    Fully masked texts still count in the divisor.
    """
    if batch.weights is None or batch.weights.ndim == 1 or loss_type == "bnpo":
        return torch.ones(len(batch))
    lengths = (batch.weights > 0).sum(-1).float().cpu()
    if loss_type == "grpo":  # the weights of a text sum to 1
        return (lengths > 0).float()
    return lengths / (batch.weights.shape[-1] if loss_type == "dr_grpo" else lengths.mean().clamp(min=1))


@algorithms.register("gigpo")
@dataclass
class GiGPO(GRPO):
    """GiGPO (Feng et al. 2025, arXiv 2505.10978): GRPO that also compares steps in states shared by episodes.
    Â = Â^E + ω Â^S. Â^E compares the episode's undiscounted return within its group. Â^S compares a step's discounted
    return to go with that of other steps in the group with the same goal, view and actions; see `anchored`.
    """

    gamma: Annotated[float, Ge(0), Le(1)] = 0.95
    """Discount factor of Â^S; 0.95 in the paper. Below 1, steps differ in return even if only the last is rewarded."""
    step_weight: Annotated[float, Gt(0)] = 1.0  # ω: weight of the step advantages; 1 in the paper

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if world.group_size is None or "words" not in world.observation:
            return "it compares steps of episodes with the same start (use a text world with, say, world.group_size=8)"
        return super().accepts(policy, args, world)

    def compare(self, rollout: Rollout, rewards: Tensor, returns: Tensor) -> Tensor:
        assert rollout.states is not None  # see `accepts`
        of_episodes = group_relative(rollout, returns_to_go(rewards, rollout.dones, 1.0), self.scale_rewards)
        return of_episodes + self.step_weight * anchored(rollout, returns, rollout.states, self.scale_rewards)
