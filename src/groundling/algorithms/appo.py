"""Asynchronous PPO with V-trace, as Motif trains NetHack's agents with it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.advantages import explained_variance
from groundling.algorithms.algorithm import algorithms
from groundling.algorithms.batch import Batch
from groundling.algorithms.losses import masked_mean, ppo_loss
from groundling.algorithms.on_policy import ClippedOnPolicy
from groundling.algorithms.optimisation import Terms, learn
from groundling.algorithms.rollout import Rollout
from groundling.algorithms.vtrace import v_trace
from groundling.envs.spec import WorldSpec
from groundling.errors import ConfigError
from groundling.policies.policy import Policy

_LEAST_LOG_RATIO, _MOST_LOG_RATIO = math.log(0.05), math.log(20.0)
"""Probabilities further apart than this count as being so far apart, and have no gradient."""
_LEAST_DEVIATION = 1e-3
"""Advantages that deviate less are as noise, and stay small: where nothing is paid, they would else be blown up."""


@algorithms.register("appo")
@dataclass
class APPO(ClippedOnPolicy):
    """PPO on segments of rollouts that an earlier policy may have gathered (Petrenko et al. 2020, arXiv 2006.11751).

    Targets and advantages come from V-trace with the values and the ratios that the present policy has on the
    minibatch; the advantages are normalised over it. A minibatch holds whole segments of the policy's ``recurrence``. A
    policy without memory has segments of one step, for which `ppo` is the better choice.

    How far behind the acting policy may be is up to the collector: none here is more than one update behind, far less
    than Motif's bound of 10,000 optimizer steps. The defaults are Motif's (Klissarov et al. 2023, arXiv 2310.00166).
    """

    learning_rate: float = 1e-4
    """Adam's step size; usually 5e-5 to 3e-4."""
    adam_epsilon: float = 1e-6
    minibatch_size: int = 4096
    """Steps per optimizer step, of all processes together; as many segments as hold them."""
    clip_range: float = 0.1
    """ε: the policy's ratio is clipped to 1 / (1 + ε) and 1 + ε."""
    value_clip_range: float | None = 1.0
    """How far a value may move from the old one without being clipped; null: no clipping."""
    value_coefficient: float = 1.0
    """Weight of the value loss, which is half the squared error: 1 here is the original's 0.5."""
    entropy_coefficient: float = 0.003
    """Weight of the entropy bonus: raise it when the policy becomes certain too soon; usually 0 to 0.01."""
    max_grad_norm: float = 4.0
    rho_bar: float = 1.0
    """V-trace's ρ̄: bounds the weight of each step's surprise."""
    c_bar: float = 1.0
    """V-trace's c̄: bounds how far back it is felt."""
    original_bootstrap: bool = False
    """Keep the original's fault: it takes (V - r) / γ for the value after a segment, so that its last step teaches
    nothing, instead of the value that the acting policy saw there."""

    divides_minibatches = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        super().__post_init__()
        if self.micro_batch_size is not None:
            raise ConfigError(
                "algorithm.args.micro_batch_size is not for appo, which normalises advantages over all that it "
                f"computes at once: leave it out, or lower minibatch_size; got {self.micro_batch_size}"
            )
        if self.contrast_coefficient:
            raise ConfigError(
                f"algorithm.args.contrast_coefficient={self.contrast_coefficient} is not for appo: leave it out, or "
                "set algorithm.id=ppo"
            )
        if min(self.rho_bar, self.c_bar) <= 0:
            raise ConfigError(
                f"algorithm.args.rho_bar and c_bar must be greater than 0, got {self.rho_bar} and {self.c_bar}"
            )

    def accepts(self, policy: Callable[..., Policy], args: Mapping[str, Any], world: WorldSpec) -> str | None:
        if getattr(policy, "writes_turns", False):
            return "it weighs each step by itself, and that policy's turns have many tokens"
        return super().accepts(policy, args, world)

    def update(
        self, policy: Policy, rollout: Rollout, *, generator: torch.Generator, remaining: float = 1.0
    ) -> dict[str, float]:
        """Go ``epochs`` times through ``rollout`` in shuffled minibatches, one optimizer step for each.

        Returns:
            Means over the minibatches of ``loss``, ``policy_loss``, ``value_loss``, ``entropy``, ``approx_kl``,
            ``clip_fraction``, ``lag_ratio`` (how much more likely the actions are now than when they were taken) and
            ``grad_norm``, and the rollout's ``explained_variance``.

        Raises:
            ConfigError: a minibatch has too few segments for every process to have one.
            RunError: a gradient is NaN or infinite, and the step is not taken; or another figure is, which is told
                after the last minibatch.
        """
        learning_rate = self.schedule(remaining)
        rewards = self.rewards(rollout)
        returns, advantages = v_trace(
            torch.zeros_like(rewards), rewards, rollout.values, rollout.dones, rollout.last_values, self.gamma
        )
        batch = Batch.of(
            policy,
            rollout,
            advantages,
            returns,
            rewards=rewards,
            dones=rollout.dones,
            following=torch.cat([rollout.values[1:], rollout.last_values[None]]),
        )
        minibatches = list(self.minibatches(batch, generator))
        self._check_shares(min(map(len, minibatches)))
        figures = learn(
            self, batch, lambda share: self._terms(policy, batch, share), minibatches, self.target_kl
        )
        figures["explained_variance"] = explained_variance(batch.values, batch.returns, batch.weights)
        return {**figures, "learning_rate": learning_rate, **self.kl.adapt(rollout)}

    def _check_shares(self, segments: int) -> None:
        """Every process must have a share, or the others would wait for it when they normalise."""
        if segments < self.processes.size:
            raise ConfigError(
                f"the smallest minibatch has {segments} segments for {self.processes.size} processes: raise "
                "algorithm.args.minibatch_size or world.num_envs, so that it has one for each, or start fewer processes"
            )

    def _terms(self, policy: Policy, batch: Batch, share: Tensor) -> Terms:
        """Of this process's share of a minibatch."""
        evaluation = batch.evaluate(policy, share)
        log_ratios = (evaluation.log_probs - batch.log_probs[share]).clamp(_LEAST_LOG_RATIO, _MOST_LOG_RATIO)
        targets, advantages = self._targets(batch, share, log_ratios.detach(), evaluation.values.detach())
        weights = batch.weights_of(share)
        loss = ppo_loss(
            batch.log_probs[share] + log_ratios,
            batch.log_probs[share],
            self._normalise(advantages, weights),
            evaluation.values,
            batch.values[share],
            targets,
            evaluation.entropies,
            clip_range=self.clip_range,
            least_ratio=1 / (1 + self.clip_range),
            value_clip_range=self.value_clip_range,
            value_coefficient=self.value_coefficient,
            entropy_coefficient=self.entropy_coefficient,
            mask=weights,
        )
        return {**loss.terms(), "lag_ratio": masked_mean(log_ratios.detach().exp(), weights)}

    def _targets(
        self, batch: Batch, share: Tensor, log_ratios: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """V-trace's targets and advantages of segments ``(num_segments, length)``, or of single steps ``(n,)``."""
        rewards, following = batch.more["rewards"][share], batch.more["following"][share]
        dones = batch.more["dones"][share]
        shape = values.shape

        def in_time(tensor: Tensor) -> Tensor:  # (length, num_segments)
            return tensor.reshape(len(share), -1).T

        last = in_time(following)[-1]
        if self.original_bootstrap:
            last = (in_time(values)[-1] - in_time(rewards)[-1]) / self.gamma
        targets, advantages = v_trace(
            in_time(log_ratios),
            in_time(rewards),
            in_time(values),
            in_time(dones),
            last,
            self.gamma,
            self.rho_bar,
            self.c_bar,
        )
        return targets.T.reshape(shape), advantages.T.reshape(shape)

    def _normalise(self, advantages: Tensor, weights: Tensor | None) -> Tensor:
        """Shift to mean 0 over the minibatch, of which every process has a share, and divide by the deviation there.

        As in the original, by `_LEAST_DEVIATION` at least.
        """
        counted = torch.ones_like(advantages) if weights is None else weights
        counted, exact = counted.double(), advantages.double()
        sums = torch.stack([counted.sum(), (counted * exact).sum(), (counted * exact**2).sum()]).tolist()
        total = self.processes.sum_figures(dict(zip(("count", "sum", "squares"), sums, strict=True)))
        mean = total["sum"] / total["count"]
        variance = max(total["squares"] / total["count"] - mean**2, 0.0)
        return (advantages - mean) / max(variance**0.5, _LEAST_DEVIATION)
