"""Advantage estimation, with and without a value function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from groundling.algorithms.losses import check_shapes
from groundling.algorithms.rollout import Rollout
from groundling.errors import ConfigError
from groundling.policies.policy import Policy


def generalized_advantage(
    rewards: Tensor, values: Tensor, dones: Tensor, last_value: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, equation 16).

    Â_t = δ_t + γ λ (1 - done_t) Â_{t+1},  δ_t = r_t + γ (1 - done_t) V(s_{t+1}) - V(s_t)

    Args:
        rewards, values: ``(num_steps, ...)``: the reward of the transition at step t, and V(s_t).
        dones: ``(num_steps, ...)`` bool or 0/1: True if the transition at step t ended the episode.
        last_value: ``(...)``, V of the observation after the last step; used where the episode has not ended.
        gamma: Discount factor.
        lam: λ; 0 corresponds to one-step temporal differences, 1 to Monte Carlo returns.

    Returns:
        Advantages, and returns (advantages + values), each ``(num_steps, ...)`` with the rewards' dtype.
    """
    check_shapes(rewards, values, dones)
    check_shapes(rewards[0], last_value)
    advantages = torch.empty_like(rewards)
    continues = 1.0 - dones.to(rewards.dtype)
    advantage, next_value = torch.zeros_like(last_value), last_value
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * continues[t] * next_value - values[t]
        advantage = delta + gamma * lam * continues[t] * advantage
        advantages[t], next_value = advantage, values[t]
    return advantages, advantages + values


def returns_to_go(rewards: Tensor, dones: Tensor, gamma: float) -> Tensor:
    """Discounted returns G_t = r_t + γ (1 - done_t) G_{t+1}; all tensors are ``(num_steps, ...)``.
    An episode that is cut off by the end of the rollout is treated as terminated.
    """
    returns = torch.empty_like(rewards)
    continues = 1.0 - dones.to(rewards.dtype)
    following = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * continues[t] * following
        returns[t] = following
    return returns


@dataclass(frozen=True, slots=True)
class GroupedEpisodes:
    """Episodes of a rollout, including those cut off at its end, and the groups in which they are compared."""

    number: Tensor  # ``(num_steps, num_envs)`` int64: index of a step's episode
    returns: Tensor  # ``(num_episodes,)``: return from an episode's first step in the rollout
    group: Tensor  # ``(num_episodes,)`` int64: index of an episode's group

    @classmethod
    def of(cls, rollout: Rollout, returns: Tensor) -> "GroupedEpisodes":
        """Find the episodes, given returns to go ``(num_steps, num_envs)``; raise `ConfigError` for groups of one."""
        begins = torch.ones_like(rollout.dones)  # (num_steps, num_envs)
        begins[1:] = rollout.dones[:-1]
        if rollout.mask is not None:
            begins &= rollout.mask
        columns = begins.T.contiguous()  # (num_envs, num_steps): numbered column by column
        number = columns.flatten().cumsum(0).view(columns.shape).T - 1
        groups = torch.zeros(len(columns)).long() if rollout.groups is None else rollout.groups
        _, group = groups[:, None].expand_as(columns)[columns].unique(return_inverse=True)
        if (torch.bincount(group) < 2).any():
            keys = "world.num_texts and texts_per_prompt" if rollout.sequences else "world.num_envs and group_size"
            raise ConfigError(f"a group has only one episode, with nothing to compare it to: set {keys} to at least 2")
        return cls(number, returns.T[columns], group)


def group_sums(x: Tensor, group: Tensor) -> Tensor:
    """Sum ``x`` ``(n,)`` over each group, given the index of each element's group: ``(num_groups,)``."""
    return x.new_zeros(int(group.max()) + 1).index_add(0, group, x)


ScaleRewards = Literal["group", "batch", "none"]
"""Divisor of group-relative advantages: the standard deviation of the group or of the whole rollout, or no divisor."""


def relative_to_group(x: Tensor, group: Tensor, scale: ScaleRewards = "group") -> Tensor:
    """(x - mean x) / (std x + 1e-4) in each group, with the unbiased standard deviation; 0 if all ``x`` are equal.
    ``x`` is ``(n,)``; ``group``, int64 ``(n,)``, is each element's group. ``scale`` selects the divisor.
    """
    counts = group_sums(torch.ones_like(x), group)[group]
    centred = x - group_sums(x, group)[group] / counts
    squares = group_sums(centred.square(), group)[group]
    least, most = (torch.zeros_like(x).scatter_reduce(0, group, x, to, include_self=False) for to in ("amin", "amax"))
    # The mean of many equal values may be rounded, so the second condition alone would miss some groups.
    equal = (least == most)[group] | (squares <= 1e-12 * group_sums(x.square(), group)[group])
    if scale == "group":
        centred = centred / ((squares / (counts - 1).clamp(min=1)).sqrt() + 1e-4)
    elif scale == "batch":
        centred = centred / (x.std() + 1e-4)
    return centred.masked_fill(equal, 0.0)


def varied_groups(rollout: Rollout, returns: Tensor, share: float) -> Tensor:
    """Select the fraction ``share`` of groups, at least one, with the largest variance of returns (SNR-aware filtering,
    RAGEN-2, arXiv 2604.06268). ``returns`` (to go) and the returned bool mask are ``(num_steps, num_envs)``.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    counts = group_sums(torch.ones_like(episodes.returns), episodes.group)
    centred = episodes.returns - (group_sums(episodes.returns, episodes.group) / counts)[episodes.group]
    order = (group_sums(centred.square(), episodes.group) / counts).argsort(descending=True, stable=True)
    chosen = torch.zeros(len(counts), dtype=torch.bool)
    chosen[order[: max(1, round(share * len(counts)))]] = True
    return chosen[episodes.group][episodes.number]


def leave_one_out(rollout: Rollout, returns: Tensor) -> Tensor:
    """Â_t = G_t - mean return of the *other* episodes in the group (Kool et al. 2019; arXiv 2402.14740).
    ``returns`` (to go) and the result are ``(num_steps, num_envs)``.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    others = group_sums(episodes.returns, episodes.group)[episodes.group] - episodes.returns
    counts = group_sums(torch.ones_like(episodes.returns), episodes.group)[episodes.group]
    baseline = others / (counts - 1)  # (num_episodes,)
    return returns - baseline[episodes.number]


def group_relative(rollout: Rollout, returns: Tensor, scale: ScaleRewards = "group") -> Tensor:
    """Â = (R - mean R) / std R over the group's episodes (Shao et al. 2024, arXiv 2402.03300, § 4.1).
    R is the return of the whole episode, not the return to go, so all of an episode's steps have the same advantage.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    return relative_to_group(episodes.returns, episodes.group, scale)[episodes.number]


def standardise(x: Tensor, mask: Tensor | None = None, rounding: float = 0.0) -> Tensor:
    """Shift and scale ``x`` to mean 0 and standard deviation 1 where ``mask`` (bool) is True; 0 elsewhere.
    If the deviation is at most ``rounding``, the result is 0, so that rounding errors are not amplified.
    """
    counted = x if mask is None else x[mask]
    if (counted == counted.flatten()[:1]).all():
        return torch.zeros_like(x)
    deviation = counted.std(correction=0)
    if deviation <= rounding:
        return torch.zeros_like(x)
    standard = (x - counted.mean()) / (deviation + 1e-8)
    return standard if mask is None else standard.masked_fill(~mask, 0.0)


def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> float:
    """1 - Var[R - V] / Var[R] where weights are positive: 1 for perfect values, 0 for constant values."""
    if weights is not None:
        values, returns = values[weights > 0], returns[weights > 0]
    variance = returns.var(correction=0)
    # Returns are constant up to rounding errors, including those of R = Â + V (a few times 6e-8 V).
    if variance <= 1e-12 * returns.square().mean() + 5e-14 * values.square().mean():
        return 0.0
    return (1 - (returns - values).var(correction=0) / variance).item()


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
    π = μ, and ρ̄ and c̄ are at least 1, v_t is the discounted return, bootstrapped from V after the last step.

    Args:
        log_ratios: ``(num_steps, ...)``, log π(a_t) - log μ(a_t), where π is the learning and μ the acting policy.
        rewards, values, dones, last_values, gamma: See `generalized_advantage`.
        rho_bar: ρ̄, which bounds the weights of temporal differences. The targets are the values of a policy between μ
            (ρ̄ near 0) and π (ρ̄ infinite).
        c_bar: c̄, which bounds how far back a temporal difference is propagated.

    Returns:
        Targets v and advantages Â, each ``(num_steps, ...)``, without gradients.
    """
    check_shapes(log_ratios, rewards, values, dones)
    check_shapes(rewards[0], last_values)
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


Credit = Literal["turn", "token", "poad"]
"""Advantages of a turn's tokens. "turn": one for all tokens. "token": one per token, as if each were an env step.
"poad": like "token", but discounted only from turn to turn (POAD, arXiv 2405.15821)."""


def credit_refusal(credit: Credit, policy: Callable[..., Policy]) -> str | None:
    """Return why the policy cannot be trained with ``credit``, or None if it can."""
    if credit == "turn" or not isinstance(policy, type) or getattr(policy, "writes_turns", False):
        return None
    return f"credit={credit} needs a policy that generates turns (leave it out, or set policy.id=action_generating)"


def token_advantages(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    dones: Tensor,
    last_value: Tensor,
    gamma: float,
    lam: float,
    token_gamma: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the tokens of turns: within a turn of K tokens, and at its end,

        δ_k = γ_w V_{k+1} - V_k,                    Â_k = δ_k + γ_w λ_w Â_{k+1}
        δ_K = r + γ (1 - done) V'_1 - V_K,          Â_K = δ_K + γ λ (1 - done) Â'_1

    where ' marks the next turn. γ_w = 1 is POAD's Bellman backup with action decomposition (Wen et al. 2024, arXiv
    2405.15821): the value of an action does not depend on its number of tokens. γ_w = γ treats each token as an env
    step, so long actions are discounted more, which is a different objective.

    Args:
        rewards: ``(num_steps, num_envs)``, the reward of each turn.
        values: ``(num_steps, num_envs, num_tokens)``, V before each token is generated.
        mask: Bool, same shape: True for the tokens to include, which must include the first of each turn. Other
            tokens, such as those forced by a grammar, are skipped.
        dones, last_value, gamma, lam: See `generalized_advantage`; they apply from turn to turn.
        token_gamma: γ_w, the discount from token to token. λ_w is ``lam``.

    Returns:
        Advantages and returns (advantages + values), each ``(num_steps, num_envs, num_tokens)``, 0 after a turn's end.
    """
    check_shapes(values, mask)
    check_shapes(values[..., 0], rewards, dones)
    check_shapes(rewards[0], last_value)
    if not mask[..., 0].all():
        raise ValueError("a turn has no token: each turn needs at least one, which may be its end token")
    advantages = torch.zeros_like(values)
    continues = 1.0 - dones.to(values.dtype)
    first_value, first_advantage = last_value, torch.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        target = rewards[t] + gamma * continues[t] * first_value
        carried = gamma * lam * continues[t] * first_advantage
        for k in reversed(range(mask.shape[2])):
            written, value = mask[t, :, k], values[t, :, k]
            advantage = target - value + carried
            advantages[t, :, k] = advantage.where(written, torch.zeros_like(advantage))
            target = torch.where(written, token_gamma * value, target)
            carried = torch.where(written, token_gamma * lam * advantage, carried)
        first_value, first_advantage = values[t, :, 0], advantages[t, :, 0]
    return advantages, (advantages + values).where(mask, torch.zeros_like(values))


def anchored(rollout: Rollout, returns: Tensor, states: Tensor, scale: ScaleRewards = "group") -> Tensor:
    """GiGPO's step advantages (Feng et al. 2025, arXiv 2505.10978): Â^S_t = (G_t - mean G) / std G.
    The mean and standard deviation are over the group's steps in the same state; episodes with the same start often
    share states. ``returns`` (to go) and the result are ``(num_steps, num_envs)``; ``states``, int64 of the same
    shape, contains equal numbers for equal states. The advantage of a step with a unique state is 0.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    counted = torch.ones_like(returns).bool() if rollout.mask is None else rollout.mask
    pairs = torch.stack([episodes.group[episodes.number], states], dim=-1)[counted]  # (num_counted, 2)
    _, anchor = pairs.unique(dim=0, return_inverse=True)
    advantages = torch.zeros_like(returns)
    advantages[counted] = relative_to_group(returns[counted], anchor, scale)
    return advantages
