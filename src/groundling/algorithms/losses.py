"""Losses as pure functions of tensors."""

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """Surrogate loss of a policy gradient, with metrics: scalars, each a mean over the unmasked elements."""

    loss: Tensor
    approx_kl: Tensor  # Estimate of KL(old ‖ new), without gradient (k3 of http://joschu.net/blog/kl-approx.html)
    clip_fraction: Tensor  # Fraction of elements whose ratio was clipped, without gradient


class PPOLoss(NamedTuple):
    """Terms of PPO's loss: scalars, each a mean over the unmasked elements."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor  # See `Surrogate`
    clip_fraction: Tensor  # See `Surrogate`


def ppo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    value: Tensor,
    old_value: Tensor,
    value_target: Tensor,
    entropy: Tensor,
    *,
    clip_range: float = 0.2,
    value_clip_range: float | None = 0.2,
    value_coefficient: float = 1.0,
    entropy_coefficient: float = 0.01,
    mask: Tensor | None = None,
) -> PPOLoss:
    """PPO's clipped objective (Schulman et al. 2017, arXiv 1707.06347, equations 7 and 9), as used by GLAM.

    L = -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)] + c_v ½ E[max((V-R)², (clip(V, V_old±ε_v)-R)²)] - c_e E[H]

    Args:
        log_prob, old_log_prob: Log-probability of the action under the current policy, and when it was taken.
        advantage: Â; not normalised here.
        value, old_value, value_target: V now, V when the action was taken, and the return R.
        entropy: H of the current policy.
        clip_range, value_clip_range: ε and ε_v. If ε_v is None, the value is not clipped.
        value_coefficient, entropy_coefficient: c_v and c_e.
        mask: 1 for elements to include, 0 for others, or weights. If None, all elements are included.

    Raises:
        ValueError: The tensors differ in shape and would be broadcast, as in the original GLAM.
    """
    check_shapes(log_prob, value, entropy)
    surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, clip_range=clip_range, mask=mask)
    value_loss = clipped_value_loss(value, old_value, value_target, clip_range=value_clip_range, mask=mask)
    mean_entropy = masked_mean(entropy, mask)
    total = surrogate.loss + value_coefficient * value_loss - entropy_coefficient * mean_entropy
    return PPOLoss(total, surrogate.loss, value_loss, mean_entropy, surrogate.approx_kl, surrogate.clip_fraction)


def clipped_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    *,
    clip_range: float = 0.2,
    min_ratio: float | None = None,
    max_ratio: float | None = None,
    by_sequence: bool = False,
    mask: Tensor | None = None,
) -> Surrogate:
    """PPO's surrogate, with the arguments of `ppo_loss`; ``min_ratio`` and ``max_ratio`` replace 1-ε and 1+ε.
    -E[min(ρ Â, clip(ρ, 1-ε, 1+ε) Â)], ρ = π(a) / π_old(a) (arXiv 1707.06347, equation 7)

    If ``by_sequence``, ρ is GSPO's: the geometric mean over the tokens of a row (arXiv 2507.18071, equation 7).
    """
    check_shapes(log_prob, old_log_prob, advantage, mask)
    log_ratio, ratio = _ratios(log_prob, old_log_prob, by_sequence, mask)
    low = 1 - clip_range if min_ratio is None else min_ratio
    clipped_ratio = ratio.clamp(low, 1 + clip_range if max_ratio is None else max_ratio)
    loss = -masked_mean(torch.minimum(ratio * advantage, clipped_ratio * advantage), mask)
    return _surrogate(loss, log_ratio, ratio != clipped_ratio, mask)


def cispo_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    *,
    max_ratio: float,
    by_sequence: bool = False,
    mask: Tensor | None = None,
) -> Surrogate:
    """CISPO's surrogate (MiniMax 2025, arXiv 2506.13585, section 3.1), with the arguments of `clipped_surrogate`.
    -E[min(ρ, ρ_max) Â log π(a)], with gradients of log π(a) only, so that clipped tokens still contribute
    """
    check_shapes(log_prob, old_log_prob, advantage, mask)
    log_ratio, ratio = _ratios(log_prob.detach(), old_log_prob, by_sequence, mask)
    loss = -masked_mean(ratio.clamp(max=max_ratio) * advantage * log_prob, mask)
    return _surrogate(loss, log_ratio, ratio > max_ratio, mask)


def _ratios(log_prob: Tensor, old_log_prob: Tensor, by_sequence: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the log-ratios and importance ratios of the tokens; if ``by_sequence``, all tokens of a row share the
    geometric mean of their ratios.
    """
    log_ratio = log_prob - old_log_prob
    if mask is not None:
        log_ratio = log_ratio.masked_fill(mask == 0, 0.0)  # exp of padding could overflow
    if not by_sequence:
        return log_ratio, log_ratio.exp()
    counts = (torch.ones_like(log_ratio) if mask is None else mask > 0).sum(-1, keepdim=True)
    return log_ratio, (log_ratio.sum(-1, keepdim=True) / counts.clamp(min=1)).expand_as(log_ratio).exp()


@torch.no_grad()
def _surrogate(loss: Tensor, log_ratio: Tensor, clipped: Tensor, mask: Tensor | None) -> Surrogate:
    """Return a surrogate with its metrics; ``clipped`` (bool) marks the ratios that were clipped."""
    approx_kl = masked_mean(log_ratio.exp() - 1 - log_ratio, mask)
    return Surrogate(loss, approx_kl, masked_mean(clipped.to(log_ratio.dtype), mask))


def clipped_value_loss(
    value: Tensor,
    old_value: Tensor,
    value_target: Tensor,
    *,
    clip_range: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """PPO's value loss: ½ E[max((V-R)², (clip(V, V_old±ε_v)-R)²)]; without ``clip_range``, ½ E[(V-R)²]."""
    check_shapes(value, old_value, value_target, mask)
    squared_error = (value - value_target).square()
    if clip_range is not None:
        clipped_value = old_value + (value - old_value).clamp(-clip_range, clip_range)
        squared_error = torch.maximum(squared_error, (clipped_value - value_target).square())
    return 0.5 * masked_mean(squared_error, mask)


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """k3 = exp(-d) + d - 1 ≥ 0, d = log π(a) - log π_ref(a): an unbiased estimate of KL(π ‖ π_ref) for a ~ π.
    From http://joschu.net/blog/kl-approx.html; GRPO's penalty (arXiv 2402.03300, equation 4).
    """
    return (-log_ratio).exp() + log_ratio - 1


def kl_divergence(old: Tensor, new: Tensor) -> Tensor:
    """KL(old ‖ new) of log-probabilities ``(..., num_actions)``, -inf for impossible actions; twice differentiable."""
    possible = old.isfinite()
    difference = old.masked_fill(~possible, 0.0) - new.masked_fill(~possible, 0.0)
    return (old.exp() * difference).sum(-1)


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of ``x`` where ``mask`` is 1, or weighted by ``mask``; 0 if everything is masked."""
    if mask is None:
        return x.mean()
    weights = mask.to(x.dtype)
    return (x.masked_fill(mask == 0, 0.0) * weights).sum() / weights.sum().clamp(min=1)


def check_shapes(*tensors: Tensor | None) -> None:
    """Raise `ValueError` if the tensors differ in shape and would be broadcast."""
    shapes = {tuple(t.shape) for t in tensors if t is not None}
    if len(shapes) > 1:
        raise ValueError(f"these tensors must have the same shape, got {sorted(shapes)}")
