"""Text envs in worker processes: for envs that are slow, or that crash or hang and must not take the run along."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import gymnasium

from groundling.errors import ConfigError, GroundlingError, RunError, foreign
from groundling.io.terminal import keep_writing
from groundling.runtime.parent import end_with

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
_START_SECONDS = 120.0
_MOST_RESTARTS = 3
"""So often in a row may a worker be lost without one answer in between."""
_PROCESSES = multiprocessing.get_context("spawn")  # a fork would copy torch's locks as its threads hold them


class EnvLost(Exception):
    """An env raised, or its process died or hung: the message says which. It was made anew, and is not yet reset."""


@dataclass
class Incidents:
    """What went wrong in workers so far, and was mended."""

    lost_envs: int = 0
    """Envs that raised, or whose worker died or hung."""
    cut_episodes: int = 0
    """Episodes that ended with their env: lost twice at the same step."""


class EnvRaised(Exception):
    """An env in this process raised, or asked to exit: its ``__cause__``."""


class LocalEnvs:
    """Envs in this process."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self._envs = envs
        self._commands: list[tuple[str, Any]] = [("", None)] * len(envs)

    def send(self, env: int, command: str, value: Any) -> None:
        """As `WorkerEnvs.send`; it is done when it is received."""
        self._commands[env] = command, value

    def receive(self, env: int) -> Any:
        """As `WorkerEnvs.receive`.

        Raises:
            EnvRaised: what it raised, unless that is a `GroundlingError`.
        """
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
    """Envs dealt out to processes that each step their share, one after the other.

    Args:
        make_env: Makes one env; it is pickled, so it must be a function of a module, or a `functools.partial` of one.
        num_envs: How many.
        num_workers: Processes; env ``i`` is in number ``i % num_workers``.
        timeout: Seconds without an answer after which a worker counts as hung.
        warn: Is told of each lost env.

    Raises:
        ConfigError: the env cannot be made in another process.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        num_envs: int,
        num_workers: int,
        timeout: float,
        warn: Callable[[str], None],
    ) -> None:
        self._timeout, self._warn = timeout, warn
        self._lost: dict[int, str] = {}
        """Envs that were made anew since they were last told anything, and why."""
        shares = [list(range(w, num_envs, num_workers)) for w in range(min(num_workers, num_envs))]
        self._workers = [_Worker(make_env, share) for share in shares]
        self._home = {env: worker for worker in self._workers for env in worker.envs}

    def send(self, env: int, command: str, value: Any) -> None:
        """Have an env ``reset`` with a seed, or take a ``step`` with an action; `receive` gives what it returned."""
        if command == "reset":
            self._lost.pop(env, None)
        if env not in self._lost:
            self._home[env].send(env, command, value)

    def receive(self, env: int) -> Any:
        """What the env returned to the last command that it was sent.

        Raises:
            EnvLost: it did not return.
            RunError: its worker is lost again and again.
        """
        if env in self._lost:
            raise EnvLost(self._lost.pop(env))
        worker = self._home[env]
        try:
            kind, value = worker.answer(env, self._timeout)
        except _WorkerLost as lost:
            self._restart(worker, str(lost))
            raise EnvLost(self._lost.pop(env)) from None
        if kind == "error":
            self._warn(f"env {env} raised {value}; it is made anew")
            raise EnvLost(f"raised {value}")
        return value

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def _restart(self, worker: "_Worker", reason: str) -> None:
        self._warn(f"the worker of envs {', '.join(map(str, worker.envs))} {reason}; it is started anew")
        if worker.lost > _MOST_RESTARTS:
            raise RunError(
                f"the worker of envs {worker.envs} was lost {worker.lost} times in a row: it {reason}"
            )
        worker.restart()
        self._lost |= dict.fromkeys(worker.envs, reason)


class _WorkerLost(Exception):
    """The process is gone, or does not answer."""


class _Worker:
    """One process, and what it has answered that nobody has asked for yet."""

    def __init__(self, make_env: MakeEnv, envs: list[int]) -> None:
        self.envs, self.lost = envs, 0
        self._make_env = make_env
        self._start()

    def send(self, env: int, command: str, value: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # which shows when its answer is waited for
            self._pipe.send((env, command, value))

    def answer(self, env: int, timeout: float) -> tuple[str, Any]:
        """Wait for an env's next answer: ``("returned", what it returned)`` or ``("error", what it raised)``.

        Raises:
            _WorkerLost: the process is gone, or has not answered after ``timeout`` seconds.
        """
        while not self._answers[env]:
            self._take_one(timeout if self._ready else _START_SECONDS)
        self.lost = 0
        return self._answers[env].pop(0)

    def restart(self) -> None:
        """Put a new process in this one's place."""
        self.end(patience=0.0)
        self._start()

    def end(self, patience: float = 2.0) -> None:
        """Let the process end, which it does when it can be told nothing more; or force it."""
        self._pipe.close()
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _start(self) -> None:
        self._pipe, pipe = _PROCESSES.Pipe()
        self._ready = False
        self._answers: dict[int, list[tuple[str, Any]]] = {env: [] for env in self.envs}
        arguments = (os.getpid(), pipe, self._make_env, self.envs)
        self._process = _PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        try:
            self._process.start()
        except (AttributeError, TypeError) as error:  # pickle's words for what has no name in a module
            raise ConfigError(
                f"the env cannot be made in a worker process ({error}): register a class or function of a module, or "
                "set world.num_workers=0"
            ) from error
        pipe.close()

    def _take_one(self, timeout: float) -> None:
        try:
            if not self._pipe.poll(timeout):
                self.lost += 1
                raise _WorkerLost(f"has not answered for {timeout:g} s")
            env, kind, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self.lost += 1
            self._process.join()
            code = self._process.exitcode or 0
            raise _WorkerLost(
                f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            ) from None
        if kind == "ready":
            self._ready = True
        else:
            self._answers[env].append((kind, value))


def _serve(parent: int, pipe: Connection, make_env: MakeEnv, numbers: list[int]) -> None:
    """A worker: do what the pipe says until it is closed, or its parent is gone."""
    end_with(parent)
    keep_writing()
    import signal

    import groundling  # noqa: F401  (registers the bundled envs)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who gives the commands
    envs = {number: make_env() for number in numbers}
    with suppress(EOFError, ConnectionError):  # the pipe is closed, or who had its other end has died
        pipe.send((numbers[0], "ready", None))
        while True:
            number, command, value = pipe.recv()
            try:
                env = envs[number]
                result = env.reset(seed=value) if command == "reset" else env.step(value)
            except (Exception, SystemExit) as error:  # whatever a user's env does
                traceback.print_exc()
                with suppress(Exception, SystemExit):  # it may hold a server or an engine
                    envs[number].close()
                envs[number] = make_env()
                answer: Any = ("error", f"{type(error).__name__}: {error}")
            else:
                answer = ("returned", result)
            pipe.send((number, *answer))
    for env in envs.values():
        env.close()
