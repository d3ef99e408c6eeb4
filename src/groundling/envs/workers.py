"""Text envs stepped in this process, or in worker processes: for slow envs, and for envs that crash or hang."""

import functools
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium

from groundling.envs.worker_pool import WorkerLost, WorkerPool
from groundling.errors import GroundlingError, foreign
from groundling.io.terminal import keep_writing

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


class EnvLost(Exception):
    """An env raised, or its process died or hung; a new one was made, which is not yet reset."""


class EnvRaised(Exception):
    """An env in this process raised, or asked to exit: its ``__cause__``."""


@dataclass
class Incidents:
    """Problems in workers so far, which were repaired."""

    lost_envs: int = 0  # envs that raised, or whose worker died or hung
    cut_episodes: int = 0  # episodes that ended with their env, lost twice at the same step


class LocalEnvs:
    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self._envs = envs
        self._commands: list[tuple[str, Any]] = [("", None)] * len(envs)

    def send(self, env: int, command: str, value: Any) -> None:
        """Note a command, which `receive` carries out."""
        self._commands[env] = command, value

    def receive(self, env: int) -> Any:
        """Carry out an env's command; raise `EnvRaised` if the env raises anything but a `GroundlingError`."""
        command, value = self._commands[env]
        try:
            return self._envs[env].step(value) if command == "step" else self._envs[env].reset(seed=value)
        except (GroundlingError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an env that calls sys.exit() ends no training
            raise EnvRaised from error

    def close(self) -> None:
        for number, env in enumerate(self._envs):
            with foreign(f"env {number} ({env}), as it was closed,"):
                env.close()


class WorkerEnvs:
    """Envs in worker processes: env ``i`` is in number ``i % num_workers``. Arguments as of `TextVectorEnv`."""

    def __init__(
        self, make_env: MakeEnv, num_envs: int, num_workers: int, timeout: float, warn: Callable[[str], None]
    ) -> None:
        self._warn = warn
        self._lost: dict[int, str] = {}  # envs made again since their last command, with the reason
        self._num_workers = min(num_workers, num_envs)
        self._shares = [range(w, num_envs, self._num_workers) for w in range(self._num_workers)]
        makers = [functools.partial(_EnvShare, make_env, share) for share in self._shares]
        self.pool = WorkerPool(makers, timeout, self._on_lost)

    def send(self, env: int, command: str, value: Any) -> None:
        """Send an env ``reset`` with a seed, or ``step`` with an action; `receive` gives what it returned."""
        if command == "reset":
            self._lost.pop(env, None)
        if env not in self._lost:
            self.pool.send(env % self._num_workers, env, (command, value))

    def receive(self, env: int) -> Any:
        """Return what the env returned to its last command; raise `EnvLost` if it did not return."""
        if env in self._lost:
            raise EnvLost(self._lost.pop(env))
        try:
            raised, value = self.pool.receive(env % self._num_workers, env)
        except WorkerLost:
            raise EnvLost(self._lost.pop(env)) from None
        if raised:
            self._warn(f"env {env} raised {value}; a new one is made")
            raise EnvLost(f"raised {value}")
        return value

    def close(self) -> None:
        self.pool.close()

    def _on_lost(self, worker: int, lost: WorkerLost) -> None:
        share = self._shares[worker]
        self._warn(f"the worker of envs {', '.join(map(str, share))} {lost}; a new one is started")
        self._lost |= dict.fromkeys(share, str(lost))


class _EnvShare:
    """The envs of a worker; answers are pairs: whether the env raised, and what it raised or returned."""

    def __init__(self, make_env: MakeEnv, numbers: Sequence[int], restarted: bool) -> None:
        keep_writing()
        import groundling  # noqa: F401  (registers the bundled envs)

        self._make_env = make_env
        self._envs = {number: make_env() for number in numbers}

    def answer(self, number: int, value: tuple[str, Any]) -> tuple[bool, Any]:
        command, argument = value
        env = self._envs[number]
        try:
            return False, env.reset(seed=argument) if command == "reset" else env.step(argument)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            with suppress(Exception, SystemExit):  # it may hold a server or an engine
                env.close()
            self._envs[number] = self._make_env()
            return True, f"{type(error).__name__}: {error}"

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
