"""Rollouts from envs: a policy acts in them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.vector import Episode, Step, TextVectorEnv
from groundling.errors import RunError
from groundling.policies.policy import Policy
from groundling.worlds.collector import Collector


class EnvCollector(Collector):
    """Lets a policy act for ``num_steps`` steps in every env, each time going on from where the envs stand.

    Args:
        envs: Where; already reset, or about to be loaded.
        num_steps: Steps of each env in a rollout.
        memory: A recurrent policy's memory ``(num_envs, memory_size)`` at the beginning of its episodes.
        others: How many envs before and after these ones other processes step: their numbers are drawn here too and
            dropped, so that the generators stay alike and an env's draw does not depend on who steps it.
        reward_scale: Factor on the rewards that the rollout holds.
        bootstrap: The discount factor with which a time-out's reward gains the value of the observation
            that it cut off (Pardo et al. 2018, arXiv 1712.00378). None: a time-out is an end, as in GLAM.
    """

    def __init__(
        self,
        envs: TextVectorEnv,
        num_steps: int,
        memory: Tensor | None = None,
        *,
        others: tuple[int, int] = (0, 0),
        reward_scale: float = 1.0,
        bootstrap: float | None = None,
    ) -> None:
        self.envs, self.memory = envs, memory
        self._num_steps, self._others = num_steps, others
        self._reward_scale, self._bootstrap = reward_scale, bootstrap

    @torch.no_grad()
    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Episode]]:
        """See `Collector.collect`.

        Raises:
            RunError: an env gave a reward that is not finite.
        """
        envs, memory = self.envs, self.memory
        steps, observations, episodes = [], [], []
        present, starts = envs.observations(), torch.from_numpy(envs.at_start())  # (num_envs,)
        memories: list[tuple[Any, Tensor]] = []
        with policy.unchanged():
            for _ in range(self._num_steps):
                memory = None if memory is None else memory * ~starts[:, None]  # (num_envs, memory_size)
                memories.append((memory, starts))
                torch.rand(self._others[0], dtype=torch.float64, generator=generator)
                action = policy.act(present, memory=memory, generator=generator)
                torch.rand(self._others[1], dtype=torch.float64, generator=generator)
                step = envs.step(action.actions.tolist())
                if not np.isfinite(step.rewards).all():
                    raise RunError(
                        f"an env gave the rewards {step.rewards.tolist()}: nothing can be learnt from those"
                    )
                rewards = step.rewards * self._reward_scale  # (num_envs,)
                if self._bootstrap is not None:
                    rewards = rewards + self._bootstrap * _cut_off_values(policy, step, action.memory)
                observations += present
                steps.append((action, rewards, step.terminated | step.truncated))
                episodes += step.episodes
                present, starts, memory = step.observations, torch.from_numpy(envs.at_start()), action.memory
                on_step(envs.num_envs)
        last_memory = None if memory is None else memory * ~starts[:, None]
        actions = torch.stack([a.actions.detach().cpu() for a, _, _ in steps])  # (num_steps, num_envs)
        log_probs = torch.stack([a.log_probs.detach().cpu() for a, _, _ in steps])
        reference = policy.reference_log_probs(observations, actions.flatten())
        rollout = Rollout(
            observations=observations,
            actions=actions,
            log_probs=log_probs,
            values=torch.stack([a.values.detach().cpu() for a, _, _ in steps]),
            rewards=torch.from_numpy(np.stack([r for _, r, _ in steps]).astype(np.float32)),
            dones=torch.from_numpy(np.stack([d for _, _, d in steps])),
            last_values=policy.values(present, last_memory).detach().cpu(),
            last_observations=present,
            memories=None if memory is None else torch.stack([m for m, _ in memories]),
            starts=None if memory is None else torch.stack([s for _, s in memories]),
            kl=None if reference is None else log_probs - reference.cpu().view_as(log_probs),
        )
        self.memory = memory
        return rollout, episodes

    def state_dict(self) -> list[dict[str, Any]]:
        return self.envs.state_dict()

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.envs.load_state_dict(states)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.memory is None else {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory = tensors.get("memory")

    def incidents(self) -> dict[str, int]:
        """What went wrong in the envs' workers, if they have any."""
        return {} if self.envs.envs else asdict(self.envs.incidents)

    def close(self) -> None:
        self.envs.close()


def _cut_off_values(policy: Policy, step: Step, memory: Tensor | None) -> np.ndarray:
    """``(num_envs,)``: the value of the last observation where a time limit cut the episode off, else 0."""
    values = np.zeros(len(step.rewards), dtype=np.float32)
    cut_off = [i for i in step.final_observations if step.truncated[i] and not step.terminated[i]]
    if cut_off:
        finals = [step.final_observations[i] for i in cut_off]
        values[cut_off] = policy.values(finals, None if memory is None else memory[cut_off]).cpu().numpy()
    return values
