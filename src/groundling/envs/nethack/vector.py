"""A vectorised NetHack env, whose envs form groups and are stepped in worker processes or in this process."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from groundling.envs.nethack import ACTIONS, RECORDING, check_installed, make_task
from groundling.envs.nethack.observation import FIGURES, LAST_FIELDS, EndStatus, SharedArrays
from groundling.envs.worker_pool import WorkerLost, WorkerPool
from groundling.errors import ConfigError, RunError, warn_caller


@dataclass(frozen=True, slots=True)
class NetHackEpisode:
    env_index: int  # index of the env in the vector
    number: int  # number of episodes that this env had previously started
    seed: int
    episode_return: float  # sum of the task's rewards
    length: int  # number of steps
    figures: dict[str, int]  # statistics by name, see `groundling.envs.nethack.observation.FIGURES`
    last: Mapping[str, np.ndarray] | None = field(default=None, compare=False)
    """Last observation of a truncated episode (`groundling.envs.nethack.observation.LAST_FIELDS`), else None."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Observations and results of ``n`` envs: views of memory that the envs write to, valid until the group's next
    `send`. Where ``dones`` is True, the reward belongs to the episode that ended, and the observation to the next one.
    """

    chars: np.ndarray  # uint8 ``(n, 12, 12)``: the characters around the hero, who is at ``[6, 6]``
    colours: np.ndarray  # uint8 ``(n, 12, 12)``: their colours, below 16
    vector: np.ndarray  # float32 ``(n, 27)``: `groundling.envs.nethack.observation.VECTORS`
    messages: np.ndarray  # uint8 ``(n, 256)``, padded with zeros
    message_ids: np.ndarray  # int64 ``(n,)``: `groundling.envs.nethack.observation.message_id`
    counts: np.ndarray  # float32 ``(n,)``: occurrences of the message in the episode, including this one
    rewards: np.ndarray  # float32 ``(n,)``
    dones: np.ndarray  # bool ``(n,)``: the episode ended with this step (game, task or step limit) or was cut
    cut: np.ndarray  # bool ``(n,)``: the env was lost mid-episode; this observation starts a new episode
    episodes: list[NetHackEpisode]  # episodes that ended with this step, except cut ones


@dataclass
class NetHackIncidents:
    """Counts of problems from which the run has recovered so far."""

    crashed_envs: int = 0  # envs that raised an exception and were recreated
    dead_workers: int = 0  # workers that died and were restarted
    hung_workers: int = 0  # workers that did not answer in time, and were killed and restarted
    cut_episodes: int = 0  # episodes that were lost with their env


_ARRAYS = [f.name for f in fields(Frames) if f.name != "episodes"]


class NetHackVectorEnv:
    """Steps ``num_envs`` envs of one task, and resets each as soon as its episode ends.

    The envs form groups of equal size, and every worker steps a share of each group. While one group is stepped, the
    learner chooses actions for another::

        frames = envs.reset()                       # frames of all envs, group by group
        envs.send(0, actions[:n]); envs.send(1, actions[n:])
        while True:
            frames = envs.receive(0); ...; envs.send(0, actions)
            frames = envs.receive(1); ...; envs.send(1, actions)

    An env that raises an error is recreated, and a worker that dies or hangs is restarted. Their episodes are lost,
    counted (``incidents``) and reported (``warn``). Seeds do not depend on the number of workers.

    Args:
        task: One of `groundling.envs.nethack.TASKS`.
        num_envs: Number of envs, a multiple of ``num_groups``.
        num_workers: Number of processes. If 0, `receive` steps the envs in this process, so a NetHack crash ends it.
        num_groups: Number of groups; with 2, the workers and the learner run concurrently.
        first_env: Index of this vector's first env among all envs of the run, if several learners share a run.
        timeout: Seconds without an answer after which a worker is considered hung.
        args: Arguments of the task (`groundling.envs.nethack.tasks.NetHackTask`).
        warn: Called with messages about lost envs.

    Raises:
        ConfigError: nle is missing, the task or an argument does not exist, or the numbers of envs, workers and groups
            are incompatible.
    """

    def __init__(
        self,
        task: str,
        num_envs: int,
        num_workers: int,
        num_groups: int = 2,
        seed: int = 0,
        first_env: int = 0,
        timeout: float = 60.0,
        args: Mapping[str, Any] | None = None,
        warn: Callable[[str], None] = warn_caller,
    ) -> None:
        if not 1 <= num_groups <= min(num_envs, 200) or num_envs % num_groups:
            raise ConfigError(
                f"num_envs must be a multiple of num_groups, which must be 1 to 200, got {num_envs} and {num_groups}"
            )
        self.num_envs, self.num_groups, self.group_size = num_envs, num_groups, num_envs // num_groups
        if not 0 <= num_workers <= self.group_size:
            raise ConfigError(f"num_workers must be 0 to {self.group_size}, the size of a group, got {num_workers}")
        check_installed()
        from groundling.envs.nethack.stepping import EnvSlices, EnvSpec, attach  # imports nle

        # Report errors in the arguments once, before allocating memory or starting processes.
        make_task(task, **{k: v for k, v in (args or {}).items() if k not in RECORDING}).close()
        self.num_actions = len(ACTIONS)
        self.incidents = NetHackIncidents()
        self._warn, self._num_workers = warn, max(num_workers, 1)
        self._spec = EnvSpec(task, seed, first_env, dict(args or {}))
        self._memory = SharedArrays(num_envs)
        self._groups = [(g * self.group_size, (g + 1) * self.group_size) for g in range(num_groups)]
        self._in_flight: set[int] = set()  # groups to which actions have been sent
        self._temporary = tempfile.TemporaryDirectory(prefix="groundling-nethack-", ignore_cleanup_errors=True)
        self._envs: EnvSlices | WorkerPool
        if not num_workers:
            self._envs = EnvSlices(self._spec, self._memory.arrays, self._groups)
            return
        shares = [np.linspace(*group, num_workers + 1).astype(int).tolist() for group in self._groups]
        slices = [[(share[w], share[w + 1]) for share in shares] for w in range(num_workers)]
        self._envs = WorkerPool(
            [partial(attach, self._spec, num_envs, self._memory.fd, own) for own in slices],
            timeout,
            self._on_lost,
            resend=True,
            environment={"OMP_NUM_THREADS": "1", "TMPDIR": self._temporary.name},
            file_descriptors=[self._memory.fd],
        )

    @property
    def process_ids(self) -> list[int]:
        return self._envs.process_ids if isinstance(self._envs, WorkerPool) else []

    def reset(self) -> Frames:
        """Start every env's next episode; return frames of all envs, without rewards. No group may be in flight."""
        from groundling.envs.nethack.stepping import BEGIN

        if self._in_flight:
            raise RunError(f"group {min(self._in_flight)} is in flight: receive its frames before reset")
        self._send(BEGIN)
        self._receive(BEGIN)
        return self._frames(0, self.num_envs)

    def send(self, group: int, actions: np.ndarray) -> None:
        """Send actions, integers ``(group_size,)`` below ``num_actions``, to a group that is not in flight."""
        if group in self._in_flight:
            raise RunError(f"group {group} is already in flight: receive its frames first")
        if actions.shape != (self.group_size,) or actions.min() < 0 or actions.max() >= self.num_actions:
            raise RunError(
                f"group {group} needs {self.group_size} actions from 0 to {self.num_actions - 1}, got {actions}"
            )
        self._memory.arrays["actions"][slice(*self._groups[group])] = actions
        self._in_flight.add(group)
        self._send(group)

    def receive(self, group: int) -> Frames:
        """Wait for the results of a group's actions; raise `RunError` if a worker is lost several times in a row."""
        if group not in self._in_flight:
            raise RunError(f"group {group} is not in flight: send it actions first")
        self._receive(group)
        self._in_flight.remove(group)
        return self._frames(*self._groups[group])

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the number of each env's next episode, and, in the first entry, the incidents of all envs.
        NetHack's own state cannot be saved: after `load_state_dict`, every env skips the rest of its current episode.
        """
        numbers = self._memory.arrays["next_episode"].tolist()
        states: list[dict[str, Any]] = [{"seed": self._spec.seed, "next_episode": number} for number in numbers]
        states[0]["incidents"] = asdict(self.incidents)
        return states

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Make the next `reset` continue after the saved episodes; the seed and the number of envs must match."""
        saved = len(states), states[0]["seed"]
        if saved != (self.num_envs, self._spec.seed):
            raise RunError(
                f"the checkpoint has {saved[0]} NetHack envs with seed {saved[1]}, but the run has {self.num_envs} "
                f"with seed {self._spec.seed}: use the checkpoint's values"
            )
        self._memory.arrays["next_episode"][:] = [state["next_episode"] for state in states]
        for state in states:
            for name, count in state.get("incidents", {}).items():
                setattr(self.incidents, name, getattr(self.incidents, name) + count)

    def close(self) -> None:
        """Stop the workers and their games; earlier frames stay valid."""
        self._envs.close()
        self._memory.close()
        self._temporary.cleanup()

    def _send(self, command: int) -> None:
        for worker in range(self._num_workers):
            self._envs.send(worker, command)

    def _receive(self, command: int) -> None:
        """Wait until all envs have executed a command, and report those that crashed."""
        for worker in range(self._num_workers):
            for crash in self._envs.receive(worker, command):
                self.incidents.crashed_envs += 1
                self._warn(f"NetHack {crash}; the env was recreated, and its episode is lost")

    def _on_lost(self, worker: int, lost: WorkerLost) -> None:
        self.incidents.hung_workers += lost.hung
        self.incidents.dead_workers += not lost.hung
        self._warn(f"NetHack worker {worker} {lost}; it will be restarted, but its episodes are lost")

    def _frames(self, start: int, stop: int) -> Frames:
        arrays = {name: self._memory.arrays[name][start:stop] for name in _ARRAYS}
        cut, dones = arrays["cut"], arrays["dones"]
        self.incidents.cut_episodes += int(np.count_nonzero(cut))
        ended = start + np.flatnonzero(dones & ~cut)
        return Frames(**arrays, episodes=[self._episode(i) for i in ended.tolist()])

    def _episode(self, env: int) -> NetHackEpisode:
        arrays = self._memory.arrays
        number = int(arrays["ended_episode"][env])
        figures = dict(zip(FIGURES, arrays["ended_figures"][env].tolist(), strict=True))
        truncated = figures["end_status"] == EndStatus.ABORTED
        return NetHackEpisode(
            env_index=env,
            number=number,
            seed=self._spec.episode_seed(env, number),
            episode_return=float(arrays["ended_return"][env]),
            length=int(arrays["ended_length"][env]),
            figures=figures,
            last={name: arrays[f"last_{name}"][env].copy() for name in LAST_FIELDS} if truncated else None,
        )
