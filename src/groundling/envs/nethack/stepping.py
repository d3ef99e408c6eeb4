"""Step NetHack envs, in this process or in workers, and write the results to shared arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groundling.envs.nethack import make_task, recording_in
from groundling.envs.nethack.observation import (
    COLOURS,
    FIGURES,
    LAST_FIELDS,
    SharedArrays,
    View,
    message_id,
    vector_features,
)
from groundling.envs.nethack.tasks import NetHackTask
from groundling.envs.seeds import training_seed

BEGIN = 255  # command to start every env's next episode; other commands are group numbers


@dataclass(frozen=True)
class EnvSpec:
    """Specification of a vector's envs and their seeds."""

    task: str
    seed: int = 0
    first_env: int = 0  # index of the vector's first env among all envs of the run
    args: dict[str, Any] = field(default_factory=dict)

    def make(self, env: int) -> NetHackTask:
        return make_task(self.task, **recording_in(self.args, f"env-{self.first_env + env:04}"))

    def episode_seed(self, env: int, episode: int) -> int:
        return training_seed(self.seed, self.first_env + env, episode)


class EnvSlice:
    """Envs ``start`` to ``stop`` (exclusive) of a vector, stepped in this process. After an error, an env is recreated
    and its transition is cut: the reward is 0, ``dones`` and ``cut`` are True, and the observation is the first of a
    new episode. If ``lost``, these envs replace lost ones, so their first `step` is cut.
    """

    def __init__(
        self, spec: EnvSpec, arrays: dict[str, np.ndarray], start: int, stop: int, lost: bool = False
    ) -> None:
        self._spec, self._start = spec, start
        self._arrays = {name: array[start:stop] for name, array in arrays.items()}
        self._envs = [spec.make(i) for i in range(start, stop)]
        self._blstats = np.zeros_like(self._arrays["vector"])
        self._counts: list[dict[bytes, int]] = [{} for _ in self._envs]
        self._returns, self._lengths = [0.0] * len(self._envs), [0] * len(self._envs)
        self._lost = lost
        self._view = View.of(spec.args)

    def begin(self) -> list[str]:
        """Start every env's next episode; return the envs' errors, as `step` does."""
        crashes = self._advance(self._begin)
        self._arrays["dones"][:] = False
        return crashes

    def step(self) -> list[str]:
        """Step each env with its action in ``arrays["actions"]``; return the envs' errors."""
        return self._advance(self._cut if self._lost else self._play)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _advance(self, play: Callable[[int], None]) -> list[str]:
        for name in ("rewards", "dones", "cut"):
            self._arrays[name][:] = 0
        self._lost, crashes = False, []
        for i, env in enumerate(self._envs):
            try:
                play(i)
            except Exception as error:  # any kind of error: only this env's episode is lost
                crashes.append(f"env {self._start + i}: {type(error).__name__}: {error}")
                env.close()
                self._envs[i] = self._spec.make(self._start + i)
                self._cut(i)
        vector_features(self._blstats, self._arrays["vector"], self._view.vector)
        np.bitwise_and(self._arrays["colours"], COLOURS - 1, out=self._arrays["colours"])
        return crashes

    def _play(self, i: int) -> None:
        env, arrays = self._envs[i], self._arrays
        reward, terminated, truncated = env.advance(int(arrays["actions"][i]))
        self._returns[i] += reward
        self._lengths[i] += 1
        arrays["rewards"][i] = reward
        if not (terminated or truncated):
            self._observe(i)
            return
        if truncated:
            self._observe(i)
            vector_features(self._blstats[i : i + 1], arrays["vector"][i : i + 1], self._view.vector)
            arrays["colours"][i] &= COLOURS - 1
            for name in LAST_FIELDS:
                arrays[f"last_{name}"][i] = arrays[name][i]
        env.quit()
        figures = {**env.figures(), "end_status": int(env.end_status)}
        arrays["ended_episode"][i] = arrays["next_episode"][i] - 1
        arrays["ended_return"][i], arrays["ended_length"][i] = self._returns[i], self._lengths[i]
        arrays["ended_figures"][i] = [figures[name] for name in FIGURES]
        arrays["dones"][i] = True
        self._begin(i)

    def _cut(self, i: int) -> None:
        self._arrays["rewards"][i] = 0
        self._arrays["dones"][i] = self._arrays["cut"][i] = True
        self._begin(i)

    def _begin(self, i: int) -> None:
        episode = int(self._arrays["next_episode"][i])
        self._arrays["next_episode"][i] = episode + 1
        self._returns[i], self._lengths[i] = 0.0, 0
        self._counts[i].clear()
        self._envs[i].begin(self._spec.episode_seed(self._start + i, episode))
        self._observe(i)

    def _observe(self, i: int) -> None:
        env, arrays, counts = self._envs[i], self._arrays, self._counts[i]
        seen = env.arrays
        self._blstats[i] = seen["blstats"]
        x, y = env.blstats[:2]
        self._view.windows(seen, x, y, arrays["chars"][i], arrays["colours"][i])
        arrays["messages"][i] = seen["message"]
        message = env.message
        arrays["message_ids"][i] = message_id(message)
        counts[message] = count = counts.get(message, 0) + 1
        arrays["counts"][i] = count


class EnvSlices:
    """This process's share of every group of envs: an `EnvSlice` for each of ``slices`` (start, stop)."""

    def __init__(
        self, spec: EnvSpec, arrays: dict[str, np.ndarray], slices: Sequence[tuple[int, int]], lost: bool = False
    ) -> None:
        self.slices = [EnvSlice(spec, arrays, start, stop, lost) for start, stop in slices]

    def answer(self, command: int, value: None = None) -> list[str]:
        if command == BEGIN:
            return [crash for envs in self.slices for crash in envs.begin()]
        return self.slices[command].step()

    def send(self, worker: int, command: int) -> None:
        """Do nothing, since `receive` steps the envs."""

    def receive(self, worker: int, command: int) -> list[str]:
        return self.answer(command)

    def close(self) -> None:
        for envs in self.slices:
            envs.close()


def attach(spec: EnvSpec, num_envs: int, fd: int, slices: Sequence[tuple[int, int]], restarted: bool) -> EnvSlices:
    """Create a worker's envs, which write to the learner's arrays."""
    return EnvSlices(spec, SharedArrays(num_envs, fd).arrays, slices, lost=restarted)
