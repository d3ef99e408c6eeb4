"""Advantage estimation, with a value function and without."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.errors import ConfigError


def generalized_advantage(
    rewards: Tensor, values: Tensor, dones: Tensor, last_value: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, equation 16).

    Â_t = δ_t + γ λ (1 - done_t) Â_{t+1},  δ_t = r_t + γ (1 - done_t) V(s_{t+1}) - V(s_t)

    Args:
        rewards, values: ``(num_steps, ...)``: the reward of the transition at step t, and V(s_t).
        dones: ``(num_steps, ...)`` bool or 0/1: the episode ended with the transition at step t.
        last_value: ``(...)``, V of the observation after the last step; used where that is not done.
        gamma: Discount factor.
        lam: λ: 0 is the one-step temporal difference, 1 the Monte Carlo return.

    Returns:
        Advantages, and returns (advantages + values), each ``(num_steps, ...)`` with the rewards' dtype.
    """
    if not rewards.shape == values.shape == dones.shape or last_value.shape != rewards.shape[1:]:
        raise ValueError(
            "rewards, values and dones must have one shape (num_steps, ...) and last_value (...): got "
            f"{tuple(rewards.shape)}, {tuple(values.shape)}, {tuple(dones.shape)}, {tuple(last_value.shape)}"
        )
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
    An episode that the rollout cuts off counts as if it had ended there, since no value function estimates the rest:
    make rollouts long in comparison with episodes.
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
    """Episodes of a rollout, including those that it cuts off, and the groups in which they are compared."""

    number: Tensor  # ``(num_steps, num_envs)`` int64: index of a step's episode
    returns: Tensor  # ``(num_episodes,)``: return from an episode's first step in the rollout
    group: Tensor  # ``(num_episodes,)`` int64: index of its group

    @classmethod
    def of(cls, rollout: Rollout, returns: Tensor) -> "GroupedEpisodes":
        """Find the episodes, given returns to go ``(num_steps, num_envs)``; `ConfigError` if a group has only one."""
        begins = torch.ones_like(rollout.dones)  # (num_steps, num_envs)
        begins[1:] = rollout.dones[:-1]
        if rollout.mask is not None:
            begins &= rollout.mask
        columns = begins.T.contiguous()  # (num_envs, num_steps): numbered column by column
        number = columns.flatten().cumsum(0).view(columns.shape).T - 1
        groups = torch.zeros(len(columns)).long() if rollout.groups is None else rollout.groups
        _, group = groups[:, None].expand_as(columns)[columns].unique(return_inverse=True)
        if (torch.bincount(group) < 2).any():
            fix = "set world.num_envs, and world.group_size if it is used, to at least 2"
            if rollout.sequences:
                fix = "set world.num_texts to at least 2, and have each prompt answered twice (world.texts_per_prompt)"
            raise ConfigError(
                f"an episode is compared with the others of its group, and one group has a single episode: {fix}"
            )
        return cls(number, returns.T[columns], group)


def group_sums(x: Tensor, group: Tensor) -> Tensor:
    """Sum ``x`` ``(n,)`` over each group, given the index of each element's group: ``(num_groups,)``."""
    return x.new_zeros(int(group.max()) + 1).index_add(0, group, x)


def relative_to_group(x: Tensor, group: Tensor, normalize_std: bool = True) -> Tensor:
    """(x - mean x) / (std x + 1e-4) over each group, with the unbiased deviation; 0 in a group of equal numbers.
    ``x`` is ``(n,)``; ``group`` int64 ``(n,)``, the index of each element's group. ``normalize_std``: divide by std x.
    """
    counts = group_sums(torch.ones_like(x), group)[group]
    centred = x - group_sums(x, group)[group] / counts
    squares = group_sums(centred.square(), group)[group]
    least, most = (torch.zeros_like(x).scatter_reduce(0, group, x, to, include_self=False) for to in ("amin", "amax"))
    # The mean of many equal numbers may be rounded, which the second condition does not notice.
    equal = (least == most)[group] | (squares <= 1e-12 * group_sums(x.square(), group)[group])
    if normalize_std:
        centred = centred / ((squares / (counts - 1).clamp(min=1)).sqrt() + 1e-4)
    return centred.masked_fill(equal, 0.0)


def leave_one_out(rollout: Rollout, returns: Tensor) -> Tensor:
    """Â_t = G_t - mean of the returns of the *other* episodes of the group (Kool et al. 2019; arXiv 2402.14740).
    Returns to go and result are ``(num_steps, num_envs)``. All steps of an episode rewarded only at its end have one
    advantage.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    others = group_sums(episodes.returns, episodes.group)[episodes.group] - episodes.returns
    counts = group_sums(torch.ones_like(episodes.returns), episodes.group)[episodes.group]
    baseline = others / (counts - 1)  # (num_episodes,)
    return returns - baseline[episodes.number]


def group_relative(rollout: Rollout, returns: Tensor, normalize_std: bool = True) -> Tensor:
    """Â = (R - mean R) / std R over the group's episodes (Shao et al. 2024, arXiv 2402.03300, § 4.1).
    R is an episode's whole return, and all its steps have one advantage, also if rewards come before its end: the
    deviation of whole returns is not that of returns to go.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    return relative_to_group(episodes.returns, episodes.group, normalize_std)[episodes.number]


def most_uncertain(rollout: Rollout, returns: Tensor, share: float) -> Tensor:
    """Select the groups whose returns deviate most (StarPO-S: Wang et al. 2025, arXiv 2504.20073).
    ``share``, in (0, 1], is that of the groups, at least one. Returns their steps, bool ``(num_steps, num_envs)``.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    counts = group_sums(torch.ones_like(episodes.returns), episodes.group)  # (num_groups,)
    mean = group_sums(episodes.returns, episodes.group) / counts
    squares = group_sums((episodes.returns - mean[episodes.group]).square(), episodes.group)
    order = (squares / counts).argsort(descending=True, stable=True)
    selected = torch.zeros(len(order), dtype=torch.bool)
    selected[order[: max(1, round(share * len(order)))]] = True
    return selected[episodes.group][episodes.number]


def standardise(x: Tensor, mask: Tensor | None = None, rounding: float = 0.0) -> Tensor:
    """Shift and scale ``x`` to mean 0 and deviation 1 where ``mask`` (bool) is True; 0 elsewhere.
    If the deviation is at most ``rounding``, everything is 0, so that rounding errors are not scaled up.
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
    """1 - Var[R - V] / Var[R] over weights above 0: 1 is a perfect value function, 0 no better than a constant."""
    if weights is not None:
        values, returns = values[weights > 0], returns[weights > 0]
    variance = returns.var(correction=0)
    # Constant up to rounding, also up to that of V in R = Â + V (a few times 6e-8 V): nothing to explain.
    if variance <= 1e-12 * returns.square().mean() + 5e-14 * values.square().mean():
        return 0.0
    return (1 - (returns - values).var(correction=0) / variance).item()
