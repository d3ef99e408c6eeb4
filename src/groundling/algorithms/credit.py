"""Credit assignment: to the tokens of turns, and to steps at states that several episodes of a group share.

The world's answer between two turns is not an action: it has no value, discount or share in an advantage, and a turn's
last token leads to the next turn's first.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from groundling.algorithms.advantages import GroupedEpisodes, relative_to_group
from groundling.algorithms.rollout import Rollout
from groundling.policies.policy import Policy

Credit = Literal["turn", "token", "poad"]
"""Advantages of a turn's tokens: "turn": the turn's; "token": a separate one for each, as if it were a step of the
world; "poad": likewise, but discounted only from turn to turn (POAD, arXiv 2405.15821)."""


def credit_refusal(credit: Credit, policy: Callable[..., Policy]) -> str | None:
    """Return why the policy cannot be trained with ``credit``, or None."""
    if credit == "turn" or not isinstance(policy, type) or getattr(policy, "writes_turns", False):
        return None
    return (
        f"credit={credit} goes to the tokens of turns, which that policy does not write (leave it out, or set "
        "policy.id=action_generating)"
    )


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
    """Generalised advantage estimation through the tokens of turns: within a turn of K tokens, and at its end,

        δ_k = γ_w V_{k+1} - V_k,                    Â_k = δ_k + γ_w λ_w Â_{k+1}
        δ_K = r + γ (1 - done) V'_1 - V_K,          Â_K = δ_K + γ λ (1 - done) Â'_1

    where ' is the next turn. γ_w = 1 is POAD's Bellman backup with action decomposition (Wen et al. 2024, arXiv
    2405.15821): the value of an action does not depend on its number of tokens. γ_w = γ makes each token a step of the
    world, so that long actions are discounted more, which is another objective.

    Args:
        rewards: ``(num_steps, num_envs)``, of each turn.
        values: ``(num_steps, num_envs, num_tokens)``, V before each token is written.
        mask: Bool, likewise: the tokens that count, among them each turn's first. Others, such as those forced by a
            grammar, are passed over.
        dones: ``(num_steps, num_envs)`` bool: the episode ended with this turn.
        last_value: ``(num_envs,)``, V before the first token after the last turn.
        gamma, lam: γ and λ, from turn to turn.
        token_gamma: γ_w, from token to token. λ_w is ``lam``.

    Returns:
        Advantages and returns (advantages + values), each ``(num_steps, num_envs, num_tokens)``, 0 after a turn's end.
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
        raise ValueError("a turn has no token: each needs at least one, which may be its end token")
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


def anchored(rollout: Rollout, returns: Tensor, states: Tensor, normalize_std: bool = True) -> Tensor:
    """GiGPO's advantages of steps (Feng et al. 2025, arXiv 2505.10978): Â^S_t = (G_t - mean G) / std G.
    Mean and deviation are over the group's steps at the same state, which episodes that begin alike often share.
    ``returns`` (to go) and result are ``(num_steps, num_envs)``; ``states``, likewise, int64, are equal for equal
    states. A step whose state no other step has gets 0.
    """
    episodes = GroupedEpisodes.of(rollout, returns)
    counted = torch.ones_like(returns).bool() if rollout.mask is None else rollout.mask
    pairs = torch.stack([episodes.group[episodes.number], states], dim=-1)[counted]  # (num_counted, 2)
    _, anchor = pairs.unique(dim=0, return_inverse=True)
    advantages = torch.zeros_like(returns)
    advantages[counted] = relative_to_group(returns[counted], anchor, normalize_std)
    return advantages
