"""Rollouts of NetHack: one group of envs steps while the policy chooses actions for the other group."""

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.nethack import TASKS
from groundling.envs.nethack.observation import EndStatus
from groundling.envs.nethack.vector import NetHackEpisode, NetHackVectorEnv
from groundling.judges.preferences.pairs import decode
from groundling.policies.nethack import NetHackObservations
from groundling.policies.policy import Policy
from groundling.rewards import Captions, RewardInputs, RewardModelPart, RewardSum
from groundling.worlds.episode import Episode
from groundling.worlds.world import Collector

_SEEN = ("chars", "colours", "vector", "messages", "message_ids", "counts")  # fields of `nethack.vector.Frames`


class NetHackCollector(Collector):
    """Collects rollouts of a policy in NetHack. If the task has a goal, an episode with a return above 0 is a success.

    As in Motif, a step's caption is the message before its action. Episodes have the metrics of
    `groundling.envs.nethack.observation.FIGURES` except ``end_status``. They also have ``death_rate`` and
    ``abort_rate`` (1 if the hero died or the step limit was reached, else 0), ``intrinsic_return`` (sum of the reward
    models' outputs without coefficients) and ``messages`` (number of distinct messages).

    Args:
        envs: The envs, not yet reset.
        rank: Offset added to the seed of this process's random numbers.
        ahead: Collect the next rollout in a thread, with a copy of the weights, while the learner trains on this one.
            Rollouts then use weights that are one update old. This is faster on a GPU, but not on a CPU.
        bootstrap: Discount factor for the value of the observation at the step limit (Pardo et al. 2018, arXiv
            1712.00378). If None, the step limit counts as a termination, as in Motif.
    """

    def __init__(
        self,
        envs: NetHackVectorEnv,
        num_steps: int,
        reward: RewardSum,
        task: str = "NetHackScore-v1",
        rank: int = 0,
        ahead: bool = False,
        bootstrap: float | None = None,
    ) -> None:
        self.envs, self.num_steps = envs, num_steps
        self.reward, self._goal = reward, str(TASKS[task]["goal"])
        self._rank, self._bootstrap = rank, bootstrap
        self._last: dict[str, np.ndarray] = {}  # the current observations of all envs
        self._memory: Tensor | None = None
        self._sums = np.zeros((2, envs.num_envs))  # intrinsic reward and distinct messages of the current episodes
        self._thread = ThreadPoolExecutor(1, "collector") if ahead else None
        self._next: Future[_Steps] | None = None
        self._actor: Policy | None = None

    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        if self._thread is None:
            return self._rewarded(self._play(policy, self._draws(generator), on_step))
        steps = (self._next or self._start(self._thread, policy, generator, on_step)).result()
        self._next = self._start(self._thread, policy, generator, on_step)
        return self._rewarded(steps)

    def state_dict(self) -> list[dict[str, Any]]:
        return self.envs.state_dict()

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self.envs.load_state_dict(states)

    def incidents(self) -> dict[str, int]:
        return asdict(self.envs.incidents) | super().incidents()

    def close(self) -> None:
        super().close()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self.envs.close()

    def _draws(self, generator: torch.Generator) -> torch.Generator:
        """Return a rollout's generator, seeded from the run's generator, which is the same in all processes."""
        seed = int(torch.randint(2**62, (1,), generator=generator))
        return torch.Generator().manual_seed(seed + self._rank)

    def _start(
        self, thread: ThreadPoolExecutor, policy: Policy, generator: torch.Generator, on_step: Callable[[int], None]
    ) -> "Future[_Steps]":
        if self._actor is None:
            self._actor = copy.deepcopy(policy)
        self._actor.load_state_dict(policy.state_dict())
        return thread.submit(self._play, self._actor, self._draws(generator), on_step)

    @torch.no_grad()
    def _play(self, policy: Policy, generator: torch.Generator, on_step: Callable[[int], None]) -> "_Steps":
        envs, num_steps = self.envs, self.num_steps
        if not self._last:
            frames = envs.reset()
            self._last = {name: getattr(frames, name) for name in _SEEN}
            self._last["dones"] = np.ones(envs.num_envs, dtype=bool)
            self._memory = policy.initial_memory(envs.num_envs)
        steps = _Steps(num_steps, self._last, policy)
        with policy.unchanged():
            for step in range(num_steps):
                for group in range(envs.num_groups):
                    if step:
                        self._receive(group, step - 1, policy, steps)
                    self._act(group, step, policy, generator, steps)
                    on_step(envs.group_size)
            for group in range(envs.num_groups):
                self._receive(group, num_steps - 1, policy, steps)
            memory = None if self._memory is None else steps.forget(self._memory, num_steps)
            steps.last_values = policy.values(steps.observations(num_steps), memory).cpu()
        self._last = {name: array[-1] for name, array in steps.seen.items()}
        return steps

    def _act(self, group: int, step: int, policy: Policy, generator: torch.Generator, steps: "_Steps") -> None:
        rows = self._rows(group)
        memory = None if self._memory is None else steps.forget(self._memory[rows], step, rows)
        if memory is not None and steps.memories is not None and step % policy.recurrence == 0:
            steps.memories[step // policy.recurrence, rows] = memory
        action = policy.act(steps.observations(step, rows), memory=memory, generator=generator)
        if self._memory is not None and action.memory is not None:
            self._memory[rows] = action.memory
        steps.actions[step, rows] = actions = action.actions.cpu()
        steps.log_probs[step, rows], steps.values[step, rows] = action.log_probs, action.values
        self.envs.send(group, actions.numpy())

    def _receive(self, group: int, step: int, policy: Policy, steps: "_Steps") -> None:
        frames, rows = self.envs.receive(group), self._rows(group)
        for name, array in steps.seen.items():
            array[step + 1, rows] = getattr(frames, name)
        steps.extrinsic[step, rows] = torch.from_numpy(frames.rewards)
        steps.episodes.update({(step, episode.env_index): episode for episode in frames.episodes})
        lasts = {episode.env_index: episode.last for episode in frames.episodes if episode.last is not None}
        if self._bootstrap is not None and lasts:
            ended = list(lasts)
            shown = NetHackObservations.stack([NetHackObservations(**last) for last in lasts.values()])
            memory = None if self._memory is None else self._memory[ended]
            steps.truncation_values[step, ended] = policy.values(shown, memory).cpu()

    def _rows(self, group: int) -> slice:
        return slice(group * self.envs.group_size, (group + 1) * self.envs.group_size)

    def _rewarded(self, steps: "_Steps") -> tuple[Rollout, list[Episode]]:
        ids, counts = (steps.seen[name][:-1] for name in ("message_ids", "counts"))  # (num_steps, num_envs)
        messages = steps.seen["messages"][:-1].reshape(ids.size, -1)

        def read(places: Sequence[int]) -> list[str]:
            return [decode(messages[place]) for place in places]

        flat = torch.from_numpy(ids).flatten(), torch.from_numpy(counts).flatten()
        captions = Captions(read, [self._goal] * ids.size, *flat)
        rewarded = self.reward(RewardInputs(ids.shape, steps.extrinsic, captions))
        intrinsic = np.zeros_like(counts)
        for name, part in self.reward.parts.items():
            if isinstance(part, RewardModelPart):
                intrinsic = intrinsic + rewarded.by_part[name].numpy()
        truncation_values = None if self._bootstrap is None else self._bootstrap * steps.truncation_values
        rollout = steps.rollout(rewarded.total, rewarded.by_part, truncation_values)
        return rollout, self._episodes(steps, np.stack([intrinsic, counts == 1]))

    def _episodes(self, steps: "_Steps", per_step: np.ndarray) -> list[Episode]:
        """Return the episodes that ended, each with its sums of ``per_step`` ``(2, num_steps, num_envs)``."""
        ended, begins = [], np.zeros(self.envs.num_envs, dtype=int)
        for step, env in np.argwhere(steps.seen["dones"][1:]).tolist():  # in the order of steps
            sums = self._sums[:, env] + per_step[:, begins[env] : step + 1, env].sum(1)
            self._sums[:, env], begins[env] = 0.0, step + 1
            episode = steps.episodes.get((step, env))
            if episode is None:  # the env was lost
                continue
            figures: dict[str, float] = dict(episode.figures)
            status = figures.pop("end_status")
            figures |= {
                "death_rate": float(status == EndStatus.DEATH),
                "abort_rate": float(status == EndStatus.ABORTED),
                "intrinsic_return": float(sums[0]),
                "messages": int(sums[1]),
                "return": episode.episode_return,
                "length": episode.length,
            }
            if self._goal != "score":
                figures["success"] = float(episode.episode_return > 0)
            ended.append(Episode(figures))
        for env, first in enumerate(begins.tolist()):
            self._sums[:, env] += per_step[:, first:, env].sum(1)
        return ended


class _Steps:
    """The steps of a rollout, as tensors ``(num_steps, num_envs)``."""

    def __init__(self, num_steps: int, first: dict[str, np.ndarray], policy: Policy) -> None:
        shape = num_steps, len(first["dones"])
        self.seen = {name: np.empty((num_steps + 1, *row.shape), row.dtype) for name, row in first.items()}
        """`_SEEN` and the previous ``dones``, before each step and at the end: ``(num_steps + 1, num_envs, …)``."""
        for name, row in first.items():
            self.seen[name][0] = row
        self.actions = torch.empty(shape, dtype=torch.int64)
        self.log_probs, self.values, self.extrinsic = torch.empty(3, *shape)
        self.truncation_values = torch.zeros(shape)  # value of the observation at the step limit, else 0
        self.memories: Tensor | None = None
        """The memory before each segment of the policy's recurrence: ``(num_segments, num_envs, memory_size)``."""
        if policy.memory_size:
            self.memories = torch.empty(-(-num_steps // policy.recurrence), shape[1], policy.memory_size)
        self.last_values = torch.empty(shape[1])
        self.episodes: dict[tuple[int, int], NetHackEpisode] = {}  # finished episodes by step and env

    def observations(self, steps: int | slice, rows: slice = slice(None)) -> NetHackObservations:
        arrays = (self.seen[name][steps, rows] for name in ("chars", "colours", "vector", "messages"))
        if isinstance(steps, slice):
            return NetHackObservations(*(array.reshape(-1, *array.shape[2:]) for array in arrays))
        return NetHackObservations(*arrays)

    def forget(self, memory: Tensor, step: int, rows: slice = slice(None)) -> Tensor:
        """Return ``memory`` ``(n, memory_size)`` before ``step``, set to 0 at the start of episodes."""
        return memory * ~torch.from_numpy(self.seen["dones"][step, rows])[:, None]

    def rollout(self, rewards: Tensor, parts: Mapping[str, Tensor], truncation_values: Tensor | None) -> Rollout:
        dones = torch.from_numpy(self.seen["dones"])
        return Rollout(
            observations=self.observations(slice(0, len(self.actions))),
            actions=self.actions,
            log_probs=self.log_probs,
            values=self.values,
            rewards=rewards,
            truncation_values=truncation_values,
            dones=dones[1:],
            last_values=self.last_values,
            last_observations=self.observations(len(self.actions)),
            memories=self.memories,
            starts=None if self.memories is None else dones[:-1],
            parts=parts,
        )
