"""V-trace: off-policy correction of returns and advantages."""

import torch
from torch import Tensor


def v_trace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    dones: Tensor,
    last_values: Tensor,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace targets and policy-gradient advantages (Espeholt et al. 2018, arXiv 1802.01561, equation 1).

    v_t = V(s_t) + δ_t + γ_t c_t (v_{t+1} - V(s_{t+1})),  δ_t = ρ_t (r_t + γ_t V(s_{t+1}) - V(s_t))
    Â_t = ρ_t (r_t + γ_t v_{t+1} - V(s_t))

    with ρ_t = min(ρ̄, π(a_t)/μ(a_t)), c_t = min(c̄, π(a_t)/μ(a_t)), and γ_t = γ, or 0 where the episode ended. If
    π = μ and both bars are at least 1, v_t is the discounted return with V after the last step.

    Args:
        log_ratios: ``(num_steps, ...)``, log π(a_t) - log μ(a_t), of the learning and the acting policy.
        rewards, values: ``(num_steps, ...)``: the reward of the transition at step t, and V(s_t).
        dones: ``(num_steps, ...)`` bool or 0/1: the episode ended with the transition at step t.
        last_values: ``(...)``, V of the observation after the last step; used where that is not done.
        gamma: Discount factor.
        rho_bar: ρ̄, bounds the temporal differences' weights; the targets are values of a policy between μ (near 0)
            and π (infinite).
        c_bar: c̄, bounds how far back a temporal difference is propagated.

    Returns:
        Targets v and advantages Â, each ``(num_steps, ...)``, without gradients.
    """
    shapes = {tuple(t.shape) for t in (log_ratios, rewards, values, dones)}
    if len(shapes) > 1 or last_values.shape != rewards.shape[1:]:
        raise ValueError(
            "log_ratios, rewards, values and dones must have one shape (num_steps, ...) and last_values (...): got "
            f"{sorted(shapes)} and {tuple(last_values.shape)}"
        )
    with torch.no_grad():
        ratios = log_ratios.exp()
        rho, c = ratios.clamp(max=rho_bar), ratios.clamp(max=c_bar)
        discounts = gamma * (1.0 - dones.to(rewards.dtype))
        targets, advantages = torch.empty_like(rewards), torch.empty_like(rewards)
        next_value = next_target = last_values
        for t in reversed(range(len(rewards))):
            advantages[t] = rho[t] * (rewards[t] + discounts[t] * next_target - values[t])
            delta = rho[t] * (rewards[t] + discounts[t] * next_value - values[t])
            targets[t] = values[t] + delta + discounts[t] * c[t] * (next_target - next_value)
            next_value, next_target = values[t], targets[t]
    return targets, advantages
