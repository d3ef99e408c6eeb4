"""Collecting rollouts of NetHack: one group of envs plays while the policy thinks about another."""

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.arguments import check_types
from groundling.configs.schema import Config
from groundling.devices import find_device
from groundling.envs.nethack import TASKS
from groundling.envs.nethack.shared import EndStatus
from groundling.envs.nethack.vector import NetHackEpisode, NetHackVectorEnv
from groundling.errors import ConfigError
from groundling.judges.asking.judge import Judge, judges
from groundling.judges.asking.questions import Question
from groundling.judges.online.questions import online_judge
from groundling.judges.online.reward import OnlineLearning, OnlineReward
from groundling.judges.preferences.captions import decode
from groundling.judges.reward_models import load_reward_model, reward_models
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.policies.nethack import NetHackObservations
from groundling.policies.policy import Policy
from groundling.rewards.intrinsic import MotifReward
from groundling.rewards.table import RewardTable
from groundling.worlds.collector import Collector

REWARD_MODEL = "reward_model"
"""Where a checkpoint holds a reward model that learns online."""
_TABLE, _ONLINE = "reward_table.safetensors", "online.safetensors"
_SEEN = ("chars", "colours", "vector", "messages", "message_ids", "counts")
"""Of `groundling.envs.nethack.vector.Frames`, what is to be seen."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A finished episode, as a run counts it."""

    episode_return: float
    """Sum of the task's rewards."""
    length: int
    """In steps."""
    success: bool | None
    """Whether the task's goal was reached; None where the score is all."""
    figures: Mapping[str, float]
    """Those of `groundling.envs.nethack.shared.FIGURES`, but for ``end_status``, a code, ``death_rate`` and
    ``abort_rate``: 1 where the hero died or the steps ran out, else 0. And ``intrinsic_return``, the sum of intrinsic
    rewards without their coefficient, and ``messages``, the number of distinct ones."""


class NetHackCollector(Collector):
    """Lets a policy play in NetHack's envs, and mixes the rewards that it learns from.

    The intrinsic reward of a step is that of the message at which its action was chosen, as in Motif, and not of the
    message that came of it.

    Args:
        envs: Where; not yet reset.
        num_steps: Steps of each env in a rollout.
        reward: How extrinsic and intrinsic reward are mixed.
        table: The reward model's numbers; not needed where ``reward`` has no intrinsic part.
        online: Lets the table's reward model learn from a judge meanwhile.
        goal: The task is to reach something: an episode with a return above 0 has succeeded.
        rank: Tells this process from the others, so that each draws actions of its own.
        ahead: Collect the next rollout, in a thread and with a copy of the weights, while the learner is at work on
            this one: rollouts are then of weights one update old. For a learner on a GPU; on a CPU nothing is gained.
        bootstrap: The discount factor with which the reward of a step that was the last allowed gains the value of what
            it led to (Pardo et al. 2018, arXiv 1712.00378). None: the step limit is an end, as in Motif.

    Raises:
        ConfigError: ``reward`` needs a reward model, or one of another kind.
    """

    def __init__(
        self,
        envs: NetHackVectorEnv,
        num_steps: int,
        reward: MotifReward,
        table: RewardTable | None = None,
        online: OnlineReward | None = None,
        goal: bool = False,
        rank: int = 0,
        ahead: bool = False,
        bootstrap: float | None = None,
    ) -> None:
        if reward.needs_reward_model:
            if table is None:
                raise ConfigError(
                    "an intrinsic reward needs a reward model: set nethack.reward_model to a folder that "
                    "`groundling distill` wrote, or nethack.reward.intrinsic_coefficient=0"
                )
            reward.check(table.model.normalization)
        self.envs, self.num_steps = envs, num_steps
        self._reward, self._table, self._online = reward, table, online
        self._goal, self._rank, self._bootstrap = goal, rank, bootstrap
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
    ) -> tuple[Rollout, list[PlayedEpisode]]:
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
        """Of the envs, and where a judge is asked what `OnlineReward.figures` tells."""
        return asdict(self.envs.incidents) | ({} if self._online is None else self._online.figures())

    def save_shared(self, folder: Path) -> None:
        """What the reward model has said so far; of one that learns online also itself and what it was told."""
        if self._table is not None:
            save_file(self._table.state_dict(), folder / _TABLE)
        if self._online is not None:
            self._online.model.save(folder / REWARD_MODEL)
            save_file(self._online.state_dict(), folder / _ONLINE)

    def load_shared(self, folder: Path) -> None:
        """Take up what `save_shared` wrote.

        Raises:
            ConfigError: the run's reward model is another one than it was.
        """
        if self._online is not None:
            model, saved = self._online.model, load_reward_model(folder / REWARD_MODEL)
            if (saved.id, saved.args) != (model.id, model.args):
                raise ConfigError(
                    f"{folder} holds a reward model of the kind {saved.id} {saved.args}, the run now has {model.id} "
                    f"{model.args}: set nethack.reward_model to what it was, or run_dir to a new folder"
                )
            model.take_up(saved)
            self._online.load_state_dict(load_file(folder / _ONLINE))
        if self._table is not None:
            table = load_file(folder / _TABLE)
            if self._online is None and int(table["version"]) != self._table.model.version:
                raise ConfigError(
                    f"{folder} was trained with another reward model than nethack.reward_model names now, and another "
                    "reward would be learnt from here on: bring the first one back, or set run_dir to a new folder"
                )
            self._table.load_state_dict(table)

    def close(self) -> None:
        if self._online is not None:
            self._online.close()
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
        own = self._own(group)
        memory = None if self._memory is None else play.forget(self._memory[own], step, own)
        if memory is not None and play.memories is not None and step % policy.recurrence == 0:
            play.memories[step // policy.recurrence, own] = memory
        action = policy.act(play.observations(step, own), memory=memory, generator=generator)
        if self._memory is not None and action.memory is not None:
            self._memory[own] = action.memory
        play.actions[step, own] = actions = action.actions.cpu()
        play.log_probs[step, own], play.values[step, own] = action.log_probs, action.values
        self.envs.send(group, actions.numpy())

    def _receive(self, group: int, step: int, policy: Policy, play: "_Play") -> None:
        """Write down what a group's actions at ``step`` have led to."""
        frames, own = self.envs.receive(group), self._own(group)
        for name, array in play.seen.items():
            array[step + 1, own] = getattr(frames, name)
        play.extrinsic[step, own] = torch.from_numpy(frames.rewards)
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
            play.cut_off[step, rows] = policy.values(shown, memory).cpu()

    def _own(self, group: int) -> slice:
        return slice(group * self.envs.group_size, (group + 1) * self.envs.group_size)

    def _reap(self, play: "_Play") -> tuple[Rollout, list[PlayedEpisode]]:
        """The rollout, with its rewards mixed, and its episodes."""
        counts = torch.from_numpy(play.seen["counts"][:-1])  # (num_steps, num_envs)
        intrinsic, spread = torch.zeros_like(counts), None
        rewards = None
        if self._table is not None and self._reward.needs_reward_model:
            ids = torch.from_numpy(play.seen["message_ids"][:-1])
            messages = play.seen["messages"][:-1].reshape(ids.numel(), -1)

            def read(places: Sequence[int]) -> list[str]:
                return [decode(messages[place]) for place in places]

            if self._online is not None:
                self._online.observe(ids, read)
                self._online.update()  # the table notices that the model is another
            rewards, spread = self._table(ids, read), self._table.model.normalization
            intrinsic = self._reward.intrinsic(rewards, counts, spread)
        mixed = self._reward(play.extrinsic, rewards, counts, spread)
        if self._bootstrap is not None:
            mixed = mixed + self._bootstrap * play.cut_off
        return play.rollout(mixed), self._tell(play, np.stack([intrinsic, counts == 1]))

    def _tell(self, play: "_Play", per_step: np.ndarray) -> list[PlayedEpisode]:
        """The episodes that ended, with the sums over their steps of ``per_step`` ``(2, num_steps, num_envs)``."""
        told, begun = [], np.zeros(self.envs.num_envs, dtype=int)
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
                success = episode.episode_return > 0 if self._goal else None
                told.append(PlayedEpisode(episode.episode_return, episode.length, success, figures))
        for env, first in enumerate(begun.tolist()):
            self._sums[:, env] += per_step[:, first:, env].sum(1)
        return told


def make_nethack_collector(config: Config, own: slice, bootstrap: float | None = None) -> NetHackCollector:
    """The collector of a config whose env is one of NetHack's tasks.

    Args:
        config: The run's.
        own: Which of the run's envs are this process's.
        bootstrap: See `NetHackCollector`.

    Raises:
        ConfigError: nle is missing, or the reward model, or an option that does not fit.
    """
    settings = config.nethack
    reward = MotifReward(**settings.reward)
    table = online = None
    if reward.needs_reward_model and (settings.reward_model is not None or settings.online.judge is not None):
        model = _reward_model(config)
        table, online = RewardTable(model), _online(config, model, own)
    envs = NetHackVectorEnv(
        config.env.id,
        own.stop - own.start,
        num_workers=settings.num_workers,
        num_groups=2 if settings.num_workers else 1,
        seed=config.seed,
        first_env=own.start,
        args=config.env.args,
    )
    return NetHackCollector(
        envs,
        config.training.steps_per_update,
        reward,
        table,
        online,
        goal=TASKS[config.env.id]["goal"] != "score",
        rank=own.start,
        ahead=settings.ahead,
        bootstrap=bootstrap,
    )


def _reward_model(config: Config) -> RewardModel:
    """The reward model that was distilled, or a new one that a judge teaches."""
    settings = config.nethack
    device = find_device(config.device)
    if settings.reward_model is not None:
        return load_reward_model(settings.reward_model, device)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return reward_models.create(settings.online.model).to(device).eval()


def _online(config: Config, model: RewardModel, own: slice) -> OnlineReward | None:
    """What lets ``model`` learn from the config's judge; None where it names none."""
    settings = config.nethack.online
    if settings.judge is None:
        return None
    if own.stop - own.start < config.env.num_envs:
        raise ConfigError(
            "nethack.online asks its judge in one process: of several, each would learn another reward. Start one "
            "process, or annotate first and set nethack.online.judge=null"
        )
    try:
        check_types(judges.get(settings.judge), "", settings.args)
        judge = judges.create(settings.judge, **settings.args)
    except (TypeError, ConfigError) as error:
        raise ConfigError(
            f"nethack.online.judge={settings.judge}: {error}: see nethack.online.args"
        ) from error
    if not isinstance(judge, Judge):
        raise ConfigError(
            f"nethack.online.judge={settings.judge} knows figures, not messages: choose another"
        )
    question = Question(settings.goal, settings.prompt)
    return OnlineReward(model, online_judge(judge, question), OnlineLearning(**settings.learning))


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
    cut_off: Tensor
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
        cut_off = torch.zeros(num_steps, num_envs)
        memories = None
        if policy.memory_size:
            memories = torch.empty(-(-num_steps // policy.recurrence), num_envs, policy.memory_size)
        return cls(seen, actions, log_probs, values, extrinsic, cut_off, memories, torch.empty(num_envs))

    def observations(self, steps: int | slice, own: slice = slice(None)) -> NetHackObservations:
        """Of one step, or of several, step by step."""
        arrays = (self.seen[name][steps, own] for name in ("chars", "colours", "vector", "messages"))
        if isinstance(steps, slice):
            return NetHackObservations(*(array.reshape(-1, *array.shape[2:]) for array in arrays))
        return NetHackObservations(*arrays)

    def forget(self, memory: Tensor, step: int, own: slice = slice(None)) -> Tensor:
        """``memory`` ``(n, memory_size)`` before ``step``: 0 where an episode begins."""
        return memory * ~torch.from_numpy(self.seen["dones"][step, own])[:, None]

    def rollout(self, rewards: Tensor) -> Rollout:
        dones = torch.from_numpy(self.seen["dones"])
        return Rollout(
            observations=self.observations(slice(0, len(rewards))),
            actions=self.actions,
            log_probs=self.log_probs,
            values=self.values,
            rewards=rewards,
            dones=dones[1:],
            last_values=self.last_values,
            last_observations=self.observations(len(rewards)),
            memories=self.memories,
            starts=None if self.memories is None else dones[:-1],
        )
