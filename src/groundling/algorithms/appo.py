"""Asynchronous PPO with V-trace, as used by Motif to train its NetHack agents."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from groundling.algorithms.advantages import v_trace
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.losses import clipped_surrogate, clipped_value_loss, masked_mean
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms
from groundling.algorithms.rollout import Batch, Rollout, Targets
from groundling.envs.text_env import WorldSpec
from groundling.errors import ConfigError
from groundling.fields import Ge, Gt
from groundling.policies.policy import Evaluated, Policy

_MIN_LOG_RATIO, _MAX_LOG_RATIO = math.log(0.05), math.log(20.0)
_MIN_DEVIATION = 1e-3  # Minimum divisor of advantages, so that noise is not amplified when there are no rewards


@algorithms.register("appo")
@dataclass
class APPO(ClippedOnPolicy):
    """PPO on segments of rollouts that an earlier policy may have collected (Petrenko et al. 2020, arXiv 2006.11751).
    L = -E[min(ρ Â, clip(ρ, 1/(1+ε), 1+ε) Â)] + c_v ½ E[max((V-R)², (clip(V, V_old±ε_v)-R)²)] - c_e E[H]

    V-trace computes R and Â for each minibatch from the current policy's values and ratios; Â is normalised over the
    minibatch, which contains whole segments of ``recurrence`` steps. The defaults are Motif's (Klissarov et al. 2023,
    arXiv 2310.00166), except that the acting policy lags by at most one update instead of 10,000 optimizer steps.
    """

    learning_rate: Annotated[float, Gt(0)] = 1e-4  # Adam's step size; usually 5e-5 to 3e-4
    adam_epsilon: Annotated[float, Gt(0)] = 1e-6
    minibatch_size: Annotated[int, Ge(1)] = 4096
    """Steps per optimizer step, over all processes; rounded down to whole segments."""
    clip_range: Annotated[float, Gt(0)] = 0.1  # ε: the policy's ratio is clipped to 1 / (1 + ε) and 1 + ε
    value_clip_range: Annotated[float | None, Gt(0)] = 1.0
    """Maximum change in a value before it is clipped; null disables clipping."""
    value_coefficient: Annotated[float, Ge(0)] = 1.0
    """Weight of the value loss (half the squared error); 1 corresponds to 0.5 in the original."""
    entropy_coefficient: Annotated[float, Ge(0)] = 0.003
    """Weight of the entropy bonus: raise it if the policy becomes deterministic too early; usually 0 to 0.01."""
    max_grad_norm: Annotated[float, Gt(0)] = 4.0
    rho_bar: Annotated[float, Gt(0)] = 1.0  # V-trace's ρ̄: bounds the weight of each step's temporal difference
    c_bar: Annotated[float, Gt(0)] = 1.0  # V-trace's c̄: bounds how far back a temporal difference is propagated

    divides_minibatches = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batch_size is not None:
            raise ConfigError(
                f"micro_batch_size={self.micro_batch_size} cannot be used with appo, which normalises advantages over "
                "the whole minibatch: leave it out, or lower minibatch_size"
            )

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if getattr(policy, "writes_turns", False):
            return "it computes one importance weight per step, but the policy generates turns of many tokens"
        return super().accepts(policy, args, world)

    def targets(self, rollout: Rollout) -> Targets:
        """Return V-trace targets for the acting policy; `loss` recomputes them for the current policy."""
        rewards = self.rewards(rollout)
        returns, advantages = v_trace(
            torch.zeros_like(rewards), rewards, rollout.values, rollout.dones, rollout.last_values, self.gamma
        )
        next_values = torch.cat([rollout.values[1:], rollout.last_values[None]])
        more = {"rewards": rewards, "dones": rollout.dones, "next_values": next_values}
        return Targets(advantages, returns, more=more)

    def loss(self, evaluation: Evaluated, batch: Batch) -> Terms:
        log_ratios = (evaluation.log_probs - batch.log_probs).clamp(_MIN_LOG_RATIO, _MAX_LOG_RATIO)
        more = (batch.more[name] for name in ("rewards", "dones", "next_values"))
        rewards, dones, next_values, ratios, values = (
            tensor.detach().reshape(len(batch), -1).T  # (length, num_segments), or (1, n) for single steps
            for tensor in (*more, log_ratios, evaluation.values)
        )
        bars = self.rho_bar, self.c_bar
        returns, advantages = (
            tensor.T.reshape(log_ratios.shape)
            for tensor in v_trace(ratios, rewards, values, dones, next_values[-1], self.gamma, *bars)
        )
        surrogate = clipped_surrogate(
            batch.log_probs + log_ratios,
            batch.log_probs,
            self._normalize(advantages, batch.weights),
            clip_range=self.clip_range,
            min_ratio=1 / (1 + self.clip_range),
            mask=batch.weights,
        )
        value_loss = clipped_value_loss(
            evaluation.values, batch.values, returns, clip_range=self.value_clip_range, mask=batch.weights
        )
        return {
            "loss": surrogate.loss + self.value_coefficient * value_loss,
            "policy_loss": surrogate.loss,
            "value_loss": value_loss,
            "approx_kl": surrogate.approx_kl,
            "clip_fraction": surrogate.clip_fraction,
            "lag_ratio": masked_mean(log_ratios.detach().exp(), batch.weights),
        }

    def minibatches(self, batch: Batch, generator: torch.Generator) -> Iterable[Tensor]:
        """Return the shuffled minibatches of all epochs; each must have at least one segment per process."""
        minibatches = list(super().minibatches(batch, generator))
        if (segments := min(map(len, minibatches))) < self.processes.size:
            raise ConfigError(
                f"the smallest minibatch has only {segments} segments for {self.processes.size} processes: raise "
                "algorithm.args.minibatch_size or world.num_envs"
            )
        return minibatches

    def _normalize(self, advantages: Tensor, weights: Tensor | None) -> Tensor:
        """Standardise over the whole minibatch, across processes; the divisor is at least `_MIN_DEVIATION`."""
        counted = torch.ones_like(advantages) if weights is None else weights
        counted, exact = counted.double(), advantages.double()
        sums = torch.stack([counted.sum(), (counted * exact).sum(), (counted * exact**2).sum()]).tolist()
        total = self.processes.sum_figures(dict(zip(("count", "sum", "squares"), sums, strict=True)))
        mean = total["sum"] / total["count"]
        variance = max(total["squares"] / total["count"] - mean**2, 0.0)
        return (advantages - mean) / max(variance**0.5, _MIN_DEVIATION)
