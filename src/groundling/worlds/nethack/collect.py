"""Collecting rollouts of NetHack: one group of envs plays while the policy thinks about another."""

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.nethack import TASKS
from groundling.envs.nethack.shared import EndStatus
from groundling.envs.nethack.vector import NetHackEpisode, NetHackVectorEnv
from groundling.judges.preferences.captions import decode
from groundling.policies.nethack import NetHackObservations
from groundling.policies.policy import Policy
from groundling.rewards import Captions, RewardModelPart, RewardSum, Stretch
from groundling.worlds.collector import Collector
from groundling.worlds.episode import Episode
from groundling.worlds.nethack.config import NetHackConfig

_SEEN = ("chars", "colours", "vector", "messages", "message_ids", "counts")
"""Of `groundling.envs.nethack.vector.Frames`, what is to be seen."""


class NetHackCollector(Collector):
    """Lets a policy play in NetHack's envs.

    A step's caption is the message at which its action was chosen, as in Motif, and not the message that came of it.

    Args:
        envs: Where; not yet reset.
        num_steps: Steps of each env in a rollout.
        reward: What is learnt from, ready to be asked.
        task: One of `groundling.envs.nethack.TASKS`. Where it is to reach something, an episode with a return above 0
            has succeeded.
        rank: Tells this process from the others, so that each draws actions of its own.
        ahead: Collect the next rollout, in a thread and with a copy of the weights, while the learner is at work on
            this one: rollouts are then of weights one update old. For a learner on a GPU; on a CPU nothing is gained.
        bootstrap: The discount factor with which the reward of a step that was the last allowed gains the value of what
            it led to (Pardo et al. 2018, arXiv 1712.00378). None: the step limit is an end, as in Motif.
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
        self._reward, self._goal = reward, str(TASKS[task]["goal"])
        self._rank, self._bootstrap = rank, bootstrap
        self._last: dict[str, np.ndarray] = {}  # what all envs show now
        self._memory: Tensor | None = None
        self._sums = np.zeros(
            (2, envs.num_envs)
        )  # of the present episodes: intrinsic reward, distinct messages
        self._thread = ThreadPoolExecutor(1, "collector") if ahead else None
        self._next: Future[_Play] | None = None
        self._actor: Policy | None = None

    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Episode]]:
        """See `Collector.collect`.

        Raises:
            RunError: the envs cannot be kept alive.
        """
        if self._thread is None:
            return self._reap(self._play(policy, self._draws(generator), on_step))
        play = (self._next or self._start(self._thread, policy, generator, on_step)).result()
        self._next = self._start(self._thread, policy, generator, on_step)
        return self._reap(play)

    def state_dict(self) -> list[dict[str, Any]]:
        """The episode that each env plays next; one that is under way is lost, for NetHack's state cannot be saved."""
        state = self.envs.state_dict()
        states = [{"seed": state["seed"], "next_episode": number} for number in state["next_episode"]]
        states[0]["incidents"] = state["incidents"]  # of all envs of this process
        return states

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        incidents = asdict(self.envs.incidents)
        for state in states:
            for name, count in state.get("incidents", {}).items():
                incidents[name] += count
        self.envs.load_state_dict(
            {
                "seed": states[0]["seed"],
                "next_episode": [state["next_episode"] for state in states],
                "incidents": incidents,
            }
        )

    def incidents(self) -> dict[str, int]:
        """Of the envs, and what `RewardSum.figures` tells."""
        return asdict(self.envs.incidents) | self._reward.figures()

    def save_shared(self, folder: Path) -> None:
        self._reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        self._reward.load(folder)

    def close(self) -> None:
        self._reward.close()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self.envs.close()

    def _draws(self, generator: torch.Generator) -> torch.Generator:
        """For one rollout, from the run's generator, from which all processes draw alike."""
        seed = int(torch.randint(2**62, (1,), generator=generator))
        return torch.Generator().manual_seed(seed + self._rank)

    def _start(
        self,
        thread: ThreadPoolExecutor,
        policy: Policy,
        generator: torch.Generator,
        on_step: Callable[[int], None],
    ) -> "Future[_Play]":
        """Let a copy of ``policy`` as it is now collect the next rollout."""
        if self._actor is None:
            self._actor = copy.deepcopy(policy)
        self._actor.load_state_dict(policy.state_dict())
        return thread.submit(self._play, self._actor, self._draws(generator), on_step)

    @torch.no_grad()
    def _play(self, policy: Policy, generator: torch.Generator, on_step: Callable[[int], None]) -> "_Play":
        envs, num_steps = self.envs, self.num_steps
        if not self._last:
            frames = envs.reset()
            self._last = {name: getattr(frames, name) for name in _SEEN}
            self._last["dones"] = np.ones(envs.num_envs, dtype=bool)
            self._memory = policy.initial_memory(envs.num_envs)
        play = _Play.begin(num_steps, self._last, policy)
        with policy.unchanged():
            for step in range(num_steps):
                for group in range(envs.num_groups):
                    if step:
                        self._receive(group, step - 1, policy, play)
                    self._act(group, step, policy, generator, play)
                    on_step(envs.group_size)
            for group in range(envs.num_groups):
                self._receive(group, num_steps - 1, policy, play)
            memory = None if self._memory is None else play.forget(self._memory, num_steps)
            play.last_values = policy.values(play.observations(num_steps), memory).cpu()
        self._last = {name: array[-1] for name, array in play.seen.items()}
        return play

    def _act(self, group: int, step: int, policy: Policy, generator: torch.Generator, play: "_Play") -> None:
        rows = self._rows(group)
        memory = None if self._memory is None else play.forget(self._memory[rows], step, rows)
        if memory is not None and play.memories is not None and step % policy.recurrence == 0:
            play.memories[step // policy.recurrence, rows] = memory
        action = policy.act(play.observations(step, rows), memory=memory, generator=generator)
        if self._memory is not None and action.memory is not None:
            self._memory[rows] = action.memory
        play.actions[step, rows] = actions = action.actions.cpu()
        play.log_probs[step, rows], play.values[step, rows] = action.log_probs, action.values
        self.envs.send(group, actions.numpy())

    def _receive(self, group: int, step: int, policy: Policy, play: "_Play") -> None:
        """Write down what a group's actions at ``step`` have led to."""
        frames, rows = self.envs.receive(group), self._rows(group)
        for name, array in play.seen.items():
            array[step + 1, rows] = getattr(frames, name)
        play.extrinsic[step, rows] = torch.from_numpy(frames.rewards)
        play.episodes.update({(step, episode.env_index): episode for episode in frames.episodes})
        if self._bootstrap is not None:
            self._value_ends(frames.episodes, step, policy, play)

    def _value_ends(self, episodes: list[NetHackEpisode], step: int, policy: Policy, play: "_Play") -> None:
        """Write down what was left to gain where ``step`` was the last of an episode that could have gone on."""
        lasts = {episode.env_index: episode.last for episode in episodes if episode.last is not None}
        if lasts:
            rows = list(lasts)
            shown = NetHackObservations.stack([NetHackObservations(**last) for last in lasts.values()])
            memory = None if self._memory is None else self._memory[rows]
            play.truncation_values[step, rows] = policy.values(shown, memory).cpu()

    def _rows(self, group: int) -> slice:
        return slice(group * self.envs.group_size, (group + 1) * self.envs.group_size)

    def _reap(self, play: "_Play") -> tuple[Rollout, list[Episode]]:
        """The rollout, with its rewards, and its episodes."""
        ids, counts = (play.seen[name][:-1] for name in ("message_ids", "counts"))  # (num_steps, num_envs)
        messages = play.seen["messages"][:-1].reshape(ids.size, -1)

        def read(places: Sequence[int]) -> list[str]:
            return [decode(messages[place]) for place in places]

        flat = torch.from_numpy(ids).flatten(), torch.from_numpy(counts).flatten()
        captions = Captions(read, [self._goal] * ids.size, *flat)
        rewarded = self._reward(Stretch(ids.shape, play.extrinsic, captions))
        intrinsic = np.zeros_like(counts)
        for name, part in self._reward.parts.items():
            if isinstance(part, RewardModelPart):
                intrinsic = intrinsic + rewarded.by_part[name].numpy()
        truncation_values = None if self._bootstrap is None else self._bootstrap * play.truncation_values
        rollout = play.rollout(rewarded.total, rewarded.by_part, truncation_values)
        return rollout, self._tell(play, np.stack([intrinsic, counts == 1]))

    def _tell(self, play: "_Play", per_step: np.ndarray) -> list[Episode]:
        """The episodes that ended, with the sums over their steps of ``per_step`` ``(2, num_steps, num_envs)``."""
        finished, begun = [], np.zeros(self.envs.num_envs, dtype=int)
        for step, env in np.argwhere(play.seen["dones"][1:]).tolist():  # in the order of steps
            sums = self._sums[:, env] + per_step[:, begun[env] : step + 1, env].sum(1)
            self._sums[:, env], begun[env] = 0.0, step + 1
            if (step, env) in play.episodes:  # not where an env was lost
                episode = play.episodes[step, env]
                figures: dict[str, float] = dict(episode.figures)
                status = figures.pop("end_status")
                figures["death_rate"] = float(status == EndStatus.DEATH)
                figures["abort_rate"] = float(status == EndStatus.ABORTED)
                figures["intrinsic_return"], figures["messages"] = float(sums[0]), int(sums[1])
                figures["return"], figures["length"] = episode.episode_return, episode.length
                if self._goal != "score":
                    figures["success"] = float(episode.episode_return > 0)
                finished.append(Episode(figures))
        for env, first in enumerate(begun.tolist()):
            self._sums[:, env] += per_step[:, first:, env].sum(1)
        return finished


def make_nethack_collector(
    config: NetHackConfig, seed: int, rows: slice, reward: RewardSum, bootstrap: float | None = None
) -> NetHackCollector:
    """The collector of one of NetHack's tasks.

    Args:
        config: The section ``world``.
        seed: The run's.
        rows: Which of the run's envs are this process's.
        reward: Ready to be asked.
        bootstrap: See `NetHackCollector`.

    Raises:
        ConfigError: nle is missing, or an option does not fit.
    """
    envs = NetHackVectorEnv(
        config.env,
        rows.stop - rows.start,
        num_workers=config.num_workers,
        num_groups=2 if config.num_workers else 1,
        seed=seed,
        first_env=rows.start,
        args=config.args,
    )
    return NetHackCollector(
        envs,
        config.num_steps,
        reward,
        task=config.env,
        rank=rows.start,
        ahead=config.ahead,
        bootstrap=bootstrap,
    )


@dataclass
class _Play:
    """What the envs showed, the policy did and the envs paid; tensors ``(num_steps, num_envs)``."""

    seen: dict[str, np.ndarray]
    """``(num_steps + 1, num_envs, ...)``, before each step and after the last: `_SEEN`, and ``dones``, whether an
    episode ended with the step before."""
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    extrinsic: Tensor
    truncation_values: Tensor
    """The value of what a step led to where it was the last that its episode was allowed, else 0."""
    memories: Tensor | None
    """``(num_segments, num_envs, memory_size)``: before the first step of each segment of the policy's recurrence."""
    last_values: Tensor
    episodes: dict[tuple[int, int], NetHackEpisode] = field(default_factory=dict)
    """By step and env."""

    @classmethod
    def begin(cls, num_steps: int, first: dict[str, np.ndarray], policy: Policy) -> "_Play":
        num_envs = len(first["dones"])
        seen = {name: np.empty((num_steps + 1, *row.shape), row.dtype) for name, row in first.items()}
        for name, row in first.items():
            seen[name][0] = row
        actions = torch.empty(num_steps, num_envs, dtype=torch.int64)
        log_probs, values, extrinsic = torch.empty(3, num_steps, num_envs)
        truncation_values = torch.zeros(num_steps, num_envs)
        memories = None
        if policy.memory_size:
            memories = torch.empty(-(-num_steps // policy.recurrence), num_envs, policy.memory_size)
        return cls(
            seen, actions, log_probs, values, extrinsic, truncation_values, memories, torch.empty(num_envs)
        )

    def observations(self, steps: int | slice, rows: slice = slice(None)) -> NetHackObservations:
        """Of one step, or of several, step by step."""
        arrays = (self.seen[name][steps, rows] for name in ("chars", "colours", "vector", "messages"))
        if isinstance(steps, slice):
            return NetHackObservations(*(array.reshape(-1, *array.shape[2:]) for array in arrays))
        return NetHackObservations(*arrays)

    def forget(self, memory: Tensor, step: int, rows: slice = slice(None)) -> Tensor:
        """``memory`` ``(n, memory_size)`` before ``step``: 0 where an episode begins."""
        return memory * ~torch.from_numpy(self.seen["dones"][step, rows])[:, None]

    def rollout(
        self, rewards: Tensor, parts: Mapping[str, Tensor], truncation_values: Tensor | None
    ) -> Rollout:
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
