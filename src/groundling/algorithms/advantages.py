"""Advantage estimation."""

import torch
from torch import Tensor


def generalized_advantage(
    rewards: Tensor, values: Tensor, dones: Tensor, last_value: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, equation 16).

    Â_t = δ_t + γ λ (1 - done_t) Â_{t+1},  δ_t = r_t + γ (1 - done_t) V(s_{t+1}) - V(s_t)

    Args:
        rewards: ``(num_steps, ...)``, the reward of the transition at step t.
        values: ``(num_steps, ...)``, V(s_t).
        dones: ``(num_steps, ...)`` bool or 0/1; whether the episode ended with the transition at step t.
        last_value: ``(...)``, V of the observation after the last step; counts where that is not done.
        gamma: Discount factor.
        lam: λ: 0 is the one-step temporal difference, 1 the Monte Carlo return.

    Returns:
        Advantages and returns (advantages + values), each ``(num_steps, ...)``, of the rewards' dtype.

    Raises:
        ValueError: the shapes differ.
    """
    if not rewards.shape == values.shape == dones.shape or last_value.shape != rewards.shape[1:]:
        raise ValueError(
            "rewards, values and dones must have one shape (num_steps, ...) and last_value (...): got "
            f"{tuple(rewards.shape)}, {tuple(values.shape)}, {tuple(dones.shape)}, {tuple(last_value.shape)}"
        )
    advantages = torch.empty_like(rewards)
    going_on = 1.0 - dones.to(rewards.dtype)
    advantage, next_value = torch.zeros_like(last_value), last_value
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * going_on[t] * next_value - values[t]
        advantage = delta + gamma * lam * going_on[t] * advantage
        advantages[t], next_value = advantage, values[t]
    return advantages, advantages + values


def standardise(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Shift and scale ``x`` to mean 0 and deviation 1 over what ``mask`` (bool) counts; 0 elsewhere."""
    if mask is None:
        return (x - x.mean()) / (x.std(correction=0) + 1e-8)
    counted = x[mask]
    return ((x - counted.mean()) / (counted.std(correction=0) + 1e-8)).masked_fill(~mask, 0.0)


def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> float:
    """1 - Var[R - V] / Var[R]: 1 is a perfect value function, 0 no better than a constant.

    Args:
        values, returns: V and R, of one shape.
        weights: 0 where a step does not count; None where all do.
    """
    if weights is not None:
        values, returns = values[weights > 0], returns[weights > 0]
    variance = returns.var(correction=0)
    if variance <= 1e-12 * returns.square().mean():  # as good as constant: nothing to explain
        return 0.0
    return (1 - (returns - values).var(correction=0) / variance).item()
