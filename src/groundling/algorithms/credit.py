"""Whose doing a reward was: of a turn's tokens, and of steps at which several episodes of a group came by.

An agent that writes its actions takes a turn at each step of its world: some tokens, after which the world answers.
What the world says between two turns is nobody's action. It has no value of its own here, no discount and no share in
an advantage: a turn's last token leads straight to the next turn's first.
"""

from typing import Literal

import torch
from torch import Tensor

from groundling.algorithms.advantages import GroupedEpisodes, all_equal
from groundling.algorithms.rollout import Rollout

Credit = Literal["turn", "token", "poad"]
"""Whose advantages the tokens of a turn have: the turn's; each its own, as if each token were a step of the world's; or
each its own, with discount from turn to turn alone (POAD, arXiv 2405.15821)."""


def token_advantages(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    dones: Tensor,
    last_value: Tensor,
    gamma: float,
    lam: float,
    token_gamma: float = 1.0,
    token_lam: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation through the tokens of turns.

    Within a turn of K tokens, and at its end,

        δ_k = γ_w V_{k+1} - V_k,                    Â_k = δ_k + γ_w λ_w Â_{k+1}
        δ_K = r + γ (1 - done) V'_1 - V_K,          Â_K = δ_K + γ λ (1 - done) Â'_1

    where ' is the next turn. With ``token_gamma`` (γ_w) of 1 that is POAD's, the Bellman backup with action
    decomposition (Wen et al. 2024, arXiv 2405.15821): how many tokens an action has does not change what it is worth.
    With γ_w = γ each token is a step of the world's, so that long actions are discounted more, and another objective is
    optimised.

    Args:
        rewards: ``(num_steps, num_envs)``: of each turn.
        values: ``(num_steps, num_envs, num_tokens)``: V before each token is written.
        mask: Bool, likewise: which tokens count; each turn's first among them. Those between them that do not, as such
            that a rule puts there, are passed over.
        dones: ``(num_steps, num_envs)`` bool: the episode ended with this turn.
        last_value: ``(num_envs,)``: V before the first token after the last turn.
        gamma: γ, from turn to turn.
        lam: λ, from turn to turn.
        token_gamma: γ_w, from token to token.
        token_lam: λ_w, likewise; None: ``lam``.

    Returns:
        Advantages and returns (advantages + values), each ``(num_steps, num_envs, num_tokens)``, 0 where nothing was
        written.

    Raises:
        ValueError: the shapes differ, or a turn has no token.
    """
    if not (
        values.shape == mask.shape
        and values.shape[:2] == rewards.shape == dones.shape
        and last_value.shape == rewards.shape[1:]
    ):
        raise ValueError(
            "values and mask must be (num_steps, num_envs, num_tokens), rewards and dones (num_steps, num_envs) and "
            f"last_value (num_envs,): got {tuple(values.shape)}, {tuple(mask.shape)}, {tuple(rewards.shape)}, "
            f"{tuple(dones.shape)}, {tuple(last_value.shape)}"
        )
    if not mask[..., 0].all():
        raise ValueError("a turn has no token: each must have one at least, which may be its end token")
    token_lam = lam if token_lam is None else token_lam
    advantages = torch.zeros_like(values)
    going_on = 1.0 - dones.to(values.dtype)
    first_value, first_advantage = last_value, torch.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        # Of the token before the present one, were it the turn's last.
        target = rewards[t] + gamma * going_on[t] * first_value
        carried = gamma * lam * going_on[t] * first_advantage
        for k in reversed(range(mask.shape[2])):
            written, value = mask[t, :, k], values[t, :, k]
            advantage = target - value + carried
            advantages[t, :, k] = advantage.where(written, torch.zeros_like(advantage))
            target = torch.where(written, token_gamma * value, target)
            carried = torch.where(written, token_gamma * token_lam * advantage, carried)
        first_value, first_advantage = values[t, :, 0], advantages[t, :, 0]
    return advantages, (advantages + values).where(mask, torch.zeros_like(values))


def anchored(rollout: Rollout, returns: Tensor, states: Tensor, normalize_std: bool = True) -> Tensor:
    """GiGPO's advantages of steps (Feng et al. 2025, arXiv 2505.10978).

    Episodes that begin alike often come by the same states. Their steps at one state are compared with each other:
    Â^S_t = (G_t - mean G) / std G over the group's steps at that state.

    Args:
        rollout: Whose episodes, and groups.
        returns: ``(num_steps, num_envs)``: returns to go, G_t.
        states: ``(num_steps, num_envs)`` int64: equal where an agent stands before the same.
        normalize_std: Divide by deviations; false: 1 stands in their place.

    Returns:
        ``(num_steps, num_envs)``; 0 of a step that has its state to itself.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    group = episodes.group[episodes.number]  # (num_steps, num_envs)
    pairs = torch.stack([group.flatten(), states.flatten()], dim=1)
    counted = torch.ones_like(returns) if rollout.mask is None else rollout.mask.to(returns.dtype)
    _, anchor = pairs.unique(dim=0, return_inverse=True)  # (num_steps * num_envs,)

    def sums(x: Tensor) -> Tensor:
        """Of ``x`` over the steps that share a step's anchor."""
        totals = torch.zeros(int(anchor.max()) + 1, dtype=returns.dtype)
        return totals.index_add(0, anchor, (x * counted).flatten())[anchor].view(returns.shape)

    counts = sums(torch.ones_like(returns)).clamp(min=1)
    advantages = returns - sums(returns) / counts
    squares = sums(advantages.square())
    alike = all_equal(returns[counted > 0], anchor[counted.flatten() > 0], int(anchor.max()) + 1)
    equal = alike[anchor].view(returns.shape) | (squares <= 1e-12 * sums(returns.square())) | (counts < 2)
    if normalize_std:
        advantages = advantages / ((squares / (counts - 1).clamp(min=1)).sqrt() + 1e-4)
    return advantages.masked_fill(equal, 0.0) * counted
