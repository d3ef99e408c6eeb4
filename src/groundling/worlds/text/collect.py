"""Rollouts from envs: a policy acts in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.observation import TextObservation
from groundling.envs.vector import Episode, Step, TextVectorEnv
from groundling.errors import RunError
from groundling.judges.preferences.segments import caption_id, caption_ids
from groundling.policies.policy import Policy
from groundling.rewards import Captions, EnvPart, EpisodeCounts, RewardSum, Stretch
from groundling.worlds.collector import Collector
from groundling.worlds.text.pairs import caption_in_context, context


class EnvCollector(Collector):
    """Lets a policy act for ``num_steps`` steps in every env, each time going on from where the envs stand.

    Args:
        envs: Where; already reset, or about to be loaded.
        num_steps: Steps of each env in a rollout.
        memory: A recurrent policy's memory ``(num_envs, memory_size)`` at the beginning of its episodes.
        others: How many envs before and after these ones other processes step: their numbers are drawn here too and
            dropped, so that the generators stay alike and an env's draw does not depend on who steps it.
        reward: What is learnt from; by default what the envs pay.
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
        reward: RewardSum | None = None,
        bootstrap: float | None = None,
    ) -> None:
        self.envs, self.memory = envs, memory
        self._num_steps, self._others = num_steps, others
        self._reward = reward or RewardSum({"env": EnvPart()})
        self._reads = bool(self._reward.needs - {"env"})
        self._counts = {name: EpisodeCounts(envs.num_envs) for name in ("captions", "judged")}
        self._bootstrap = bootstrap

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
        paid, cut_off = [], []
        read = {name: _Captions(counts) for name, counts in self._counts.items()}
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
                paid.append(torch.from_numpy(step.rewards))  # (num_envs,)
                if self._bootstrap is not None:
                    cut_off.append(_cut_off_values(policy, step, action.memory))
                if self._reads:
                    self._caption(present, action.actions.tolist(), step, read)
                observations += present
                steps.append((action, step.dones))
                episodes += step.episodes
                present, starts, memory = step.observations, torch.from_numpy(envs.at_start()), action.memory
                on_step(envs.num_envs)
            last_memory = None if memory is None else memory * ~starts[:, None]
            last_values = policy.values(present, last_memory).detach().cpu()
        actions = torch.stack([a.actions.detach() for a, _ in steps]).cpu()  # (num_steps, num_envs)
        log_probs = torch.stack([a.log_probs.detach() for a, _ in steps]).cpu()
        rewarded = self._reward(
            Stretch(
                (self._num_steps, envs.num_envs),
                torch.stack(paid),
                captions=read["captions"].read() if self._reads else None,
                judged=read["judged"].read() if self._reads else None,
            )
        )
        rewards = rewarded.total
        if self._bootstrap is not None:
            rewards = rewards + self._bootstrap * torch.stack(cut_off)
        reference = policy.reference_log_probs(observations, actions.flatten())
        rollout = Rollout(
            observations=observations,
            actions=actions,
            log_probs=log_probs,
            values=torch.stack([a.values.detach() for a, _ in steps]).cpu(),
            rewards=rewards,
            dones=torch.from_numpy(np.stack([d for _, d in steps])),
            last_values=last_values,
            last_observations=present,
            memories=None if memory is None else torch.stack([m for m, _ in memories]),
            starts=None if memory is None else torch.stack([s for _, s in memories]),
            kl=None if reference is None else log_probs - reference.cpu().view_as(log_probs),
            parts=rewarded.by_part,
        )
        self.memory = memory
        return rollout, episodes

    def state_dict(self) -> list[dict[str, Any]]:
        states = self.envs.state_dict()
        for name, counts in self._counts.items() if self._reads else ():
            states = [
                {**state, name: count} for state, count in zip(states, counts.state_dict(), strict=True)
            ]
        return states

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.envs.load_state_dict(states)
        for name, counts in self._counts.items():
            counts.load_state_dict([state.get(name, {}) for state in states])

    def _caption(
        self,
        seen: Sequence[TextObservation],
        actions: Sequence[int],
        step: Step,
        read: Mapping[str, "_Captions"],
    ) -> None:
        """Note a step of all envs; of an episode that ended with it, its last observation."""
        for env, (before, action) in enumerate(zip(seen, actions, strict=True)):
            reached = step.final_observations.get(env, step.observations[env])
            read["captions"].add(env, "\n".join(reached.descriptions[-1]), reached.goal)
            judged = caption_in_context(before, before.actions[action])
            read["judged"].add(env, judged, before.goal, context(before))
        for counts in self._counts.values():
            counts.end(step.final_observations)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.memory is None else {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory = tensors.get("memory")

    def incidents(self) -> dict[str, int]:
        """What went wrong in the envs' workers, if they have any."""
        return ({} if self.envs.envs else asdict(self.envs.incidents)) | self._reward.figures()

    def save_shared(self, folder: Path) -> None:
        self._reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        self._reward.load(folder)

    def close(self) -> None:
        self._reward.close()
        self.envs.close()


class _Captions:
    """One kind of captions of a rollout, as they are gathered.

    Args:
        counts: How often each has come up in the present episodes.
    """

    def __init__(self, counts: EpisodeCounts) -> None:
        self._texts: list[str] = []
        self._goals: list[str] = []
        self._contexts: list[str] = []
        self._counts: list[int] = []
        self._seen = counts

    def add(self, env: int, text: str, goal: str, context: str = "") -> None:
        self._texts.append(text)
        self._goals.append(goal)
        self._contexts.append(context)
        self._counts.append(self._seen.add(env, caption_id(text)))

    def read(self) -> Captions:
        """All of them."""
        counts = torch.tensor(self._counts, dtype=torch.float32)
        ids = torch.from_numpy(caption_ids(self._texts))
        return Captions(
            lambda places: [self._texts[place] for place in places],
            self._goals,
            ids,
            counts,
            contexts=self._contexts,
        )


def _cut_off_values(policy: Policy, step: Step, memory: Tensor | None) -> Tensor:
    """float32 ``(num_envs,)``: the value of the last observation where a time limit cut the episode off, else 0."""
    values = torch.zeros(len(step.rewards))
    cut_off = [i for i in step.final_observations if step.truncated[i] and not step.terminated[i]]
    if cut_off:
        finals = [step.final_observations[i] for i in cut_off]
        values[cut_off] = policy.values(finals, None if memory is None else memory[cut_off]).cpu()
    return values
