"""Collecting a rollout: a policy acts in its envs."""

from collections.abc import Callable

import numpy as np
import torch

from groundling.algorithms.rollout import Rollout
from groundling.envs.vector import Episode, Step, TextVectorEnv
from groundling.policies.policy import Policy


@torch.no_grad()
def collect(
    policy: Policy,
    envs: TextVectorEnv,
    num_steps: int,
    *,
    generator: torch.Generator,
    reward_scale: float = 1.0,
    bootstrap: float | None = None,
    on_step: Callable[[int], None] = lambda num_envs: None,
) -> tuple[Rollout, list[Episode]]:
    """Let ``policy`` act for ``num_steps`` steps in every env, going on from where the envs stand.

    Args:
        policy: Chooses the actions.
        envs: Where; already reset.
        num_steps: Steps of each env.
        generator: Draws the actions.
        reward_scale: Factor on the rewards that the rollout holds.
        bootstrap: The discount factor with which a time-out's reward gains the value of the observation
            that it cut off (Pardo et al. 2018, arXiv 1712.00378). None: a time-out is an end, as in GLAM.
        on_step: Called after each step with the number of transitions it gave.

    Returns:
        The rollout, and the episodes that ended in it.
    """
    steps, observations, episodes = [], [], []
    present = envs.observations()
    for _ in range(num_steps):
        action = policy.act(present, generator=generator)
        step = envs.step(action.actions.tolist())
        rewards = step.rewards * reward_scale  # (num_envs,)
        if bootstrap is not None:
            rewards = rewards + bootstrap * _cut_off_values(policy, step)
        observations += present
        steps.append((action, rewards, step.terminated | step.truncated))
        episodes += step.episodes
        present = step.observations
        on_step(envs.num_envs)
    return Rollout(
        observations=observations,
        actions=torch.stack([a.actions.detach().cpu() for a, _, _ in steps]),
        log_probs=torch.stack([a.log_probs.detach().cpu() for a, _, _ in steps]),
        values=torch.stack([a.values.detach().cpu() for a, _, _ in steps]),
        rewards=torch.from_numpy(np.stack([r for _, r, _ in steps]).astype(np.float32)),
        dones=torch.from_numpy(np.stack([d for _, _, d in steps])),
        last_values=policy.values(present).detach().cpu(),
    ), episodes


def _cut_off_values(policy: Policy, step: Step) -> np.ndarray:
    """``(num_envs,)``: the value of the last observation where a time limit cut the episode off, else 0."""
    values = np.zeros(len(step.rewards), dtype=np.float32)
    cut_off = [i for i in step.final_observations if step.truncated[i] and not step.terminated[i]]
    if cut_off:
        values[cut_off] = policy.values([step.final_observations[i] for i in cut_off]).cpu().numpy()
    return values
