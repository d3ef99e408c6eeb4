"""Worker processes that step the envs of text worlds and NetHack."""

import functools
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from typing import Any

import gymnasium

from groundling.errors import ConfigError, RunError
from groundling.io.terminal import keep_writing
from groundling.runtime.parallel import end_with

_START_SECONDS = 120.0
_MOST_LOSSES = 3  # Maximum number of consecutive losses of a worker, without an answer in between


MakeHandler = Callable[[bool], Any]
"""Creates a command handler in a worker process. The handler has the methods ``answer(key, value)``, whose exceptions
end the process, and ``close()``. The argument is True if the handler replaces that of a lost worker."""


class WorkerLost(Exception):
    """A worker died or hung, and was restarted."""

    def __init__(self, reason: str, hung: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung


class WorkerPool:
    """Worker processes that execute commands in the order in which they are sent.

    Args:
        make_handlers: One function per worker that creates the worker's handler; must be picklable.
        timeout: Seconds without an answer after which a worker is considered hung.
        on_lost: Called with a worker's number and the `WorkerLost` exception.
        resend: Resend a lost worker's unanswered commands to its replacement.

    Raises:
        ConfigError: A handler cannot be created in another process.
    """

    def __init__(
        self,
        make_handlers: Sequence[MakeHandler],
        timeout: float,
        on_lost: Callable[[int, WorkerLost], None],
        *,
        resend: bool = False,
        environment: Mapping[str, str] | None = None,
        file_descriptors: Iterable[int] = (),
    ) -> None:
        self._timeout, self._on_lost, self._resend = timeout, on_lost, resend
        try:
            handlers = [pickle.dumps(make) for make in make_handlers]
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"the env cannot be created in a worker process ({error}): register a class or function defined in a "
                "module, or set world.num_workers=0"
            ) from error
        if any(b"__main__" in one for one in handlers) and not hasattr(sys.modules["__main__"], "__file__"):
            raise ConfigError(
                "worker processes cannot import definitions from a notebook or an interactive session: move the env "
                "to a module, or set world.num_workers=0"
            )
        inherited = {**os.environ, **(environment or {})}, tuple(file_descriptors)
        self._workers = [_Worker(handler, *inherited) for handler in handlers]

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def send(self, worker: int, key: Hashable, value: Any = None) -> None:
        """Send a command; `receive` returns its answer under the same key."""
        self._workers[worker].send(key, value)

    def receive(self, worker: int, key: Hashable) -> Any:
        """Wait for an answer to ``key``; raise `WorkerLost` (unless ``resend``), or `RunError` after several losses."""
        process = self._workers[worker]
        while True:
            try:
                return process.receive(key, self._timeout)
            except WorkerLost as lost:
                self._on_lost(worker, lost)
                if process.losses > _MOST_LOSSES:
                    raise RunError(f"worker {worker} was lost {process.losses} times in a row: it {lost}") from None
                process.restart(self._resend)
                if not self._resend:
                    raise

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end(patience=2.0)


class _Worker:
    """A worker process with its unanswered commands and the answers not yet fetched."""

    process: subprocess.Popen[bytes]
    _is_ready: bool

    def __init__(self, handler: bytes, environment: Mapping[str, str], file_descriptors: tuple[int, ...]):
        self._handler, self._environment, self._inherited = handler, environment, file_descriptors
        self.losses = 0  # since the last answer
        self._unanswered: list[tuple[Hashable, Any]] = []
        self._start(restarted=False)

    def send(self, key: Hashable, value: Any) -> None:
        self._unanswered.append((key, value))
        with suppress(BrokenPipeError, ConnectionResetError):  # reported by `receive`
            self.pipe.send((key, value))

    def receive(self, key: Hashable, timeout: float) -> Any:
        while not self._answers.get(key):
            limit = timeout if self._is_ready else _START_SECONDS
            try:
                if not self.pipe.poll(limit):
                    self.losses += 1
                    raise WorkerLost(f"has not answered for {limit:g} s", hung=True)
                answered, value = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.losses += 1
                code = self.process.wait()
                how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
                raise WorkerLost(how) from None
            if not self._is_ready:
                if value is not None:
                    raise ConfigError(f"a worker process cannot create its envs: {value}")
                self._is_ready = True
                continue
            self.losses = 0
            self._unanswered.pop(next(i for i, (sent, _) in enumerate(self._unanswered) if sent == answered))
            self._answers.setdefault(answered, []).append(value)
        return self._answers[key].pop(0)

    def restart(self, resend: bool) -> None:
        self.pipe.close()
        self.end(patience=0.0)
        self._start(restarted=True)
        commands, self._unanswered = self._unanswered, []
        for command in commands if resend else ():
            self.send(*command)

    def end(self, patience: float) -> None:
        """Wait for the process to exit after its pipe has been closed; kill it after ``patience`` seconds."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _start(self, restarted: bool) -> None:
        self.pipe, theirs = Pipe()
        self._answers: dict[Hashable, list[Any]] = {}
        self._is_ready = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(), *self._inherited),
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={**self._environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        # The running script, if the worker must import definitions from it.
        main = getattr(sys.modules["__main__"], "__file__", None) if b"__main__" in self._handler else None
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((os.getpid(), main, restarted))
            self.pipe.send_bytes(self._handler)


def is_worker() -> bool:
    """Return True in a worker process."""
    return getattr(sys.modules["__main__"].__spec__, "name", None) == __name__


def _serve(pipe: Connection) -> None:
    parent, main, restarted = pipe.recv()
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent process
    try:
        if main is not None:
            spawn.import_main_path(main)
        # Unpickling is safe: the parent process sent the bytes through a pipe that no other process can access.
        handler = pickle.loads(pipe.recv_bytes())(restarted)
    except Exception as error:
        traceback.print_exc()
        pipe.send((None, f"{type(error).__name__}: {error}"))
        return
    with suppress(EOFError, ConnectionError):  # the pipe is closed
        pipe.send((None, None))  # ready
        while True:
            key, value = pipe.recv()
            pipe.send((key, handler.answer(key, value)))
    handler.close()


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))


class EnvLost(RunError):
    """An env raised an exception, or its process or server died or hung; the env must be reset."""


@dataclass
class Incidents:
    """Counts of worker problems from which training has recovered."""

    lost_envs: int = 0  # envs that raised, or whose worker died or hung
    cut_episodes: int = 0  # episodes that were cut off because their env was lost twice at a step


class WorkerEnvs:
    """Envs in worker processes: env ``i`` is in worker ``i % num_workers``. See `TextVectorEnv` for the arguments."""

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        num_workers: int,
        timeout: float,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._lost: dict[int, str] = {}  # envs recreated since their last command, with the reason
        self._num_workers = min(num_workers, num_envs)
        self._shares = [range(w, num_envs, self._num_workers) for w in range(self._num_workers)]
        makers = [functools.partial(_EnvShare, make_env, share) for share in self._shares]
        self.pool = WorkerPool(makers, timeout, self._on_lost)

    def send(self, env: int, command: str, value: Any) -> None:
        """Send an env ``reset`` with a seed, or ``step`` with an action; `receive` returns the result."""
        if command == "reset":
            self._lost.pop(env, None)
        if env not in self._lost:
            self.pool.send(env % self._num_workers, env, (command, value))

    def receive(self, env: int) -> Any:
        """Return the result of the env's last command; raise `EnvLost` if the env was lost."""
        if env in self._lost:
            raise EnvLost(self._lost.pop(env))
        try:
            raised, value = self.pool.receive(env % self._num_workers, env)
        except WorkerLost:
            raise EnvLost(self._lost.pop(env)) from None
        if isinstance(value, EnvLost):
            self._warn(f"env {env} {value}")
            raise value
        if raised:
            self._warn(f"env {env} raised {value}; creating a new one")
            raise EnvLost(f"raised {value}")
        return value

    def close(self) -> None:
        self.pool.close()

    def _on_lost(self, worker: int, lost: WorkerLost) -> None:
        share = self._shares[worker]
        self._warn(f"the worker of envs {', '.join(map(str, share))} {lost}; starting a new one")
        self._lost |= dict.fromkeys(share, str(lost))


class _EnvShare:
    """The envs of a worker. Each answer is a pair: a bool that is True if the env raised, and the error or result."""

    def __init__(
        self, make_env: Callable[[], gymnasium.Env[Any, Any]], numbers: Sequence[int], restarted: bool
    ) -> None:
        keep_writing()
        import groundling  # noqa: F401  (registers the bundled envs)

        self._make_env = make_env
        self._envs = {number: make_env() for number in numbers}

    def answer(self, number: int, value: tuple[str, Any]) -> tuple[bool, Any]:
        command, argument = value
        env = self._envs[number]
        try:
            return False, env.reset(seed=argument) if command == "reset" else env.step(argument)
        except EnvLost as lost:  # a remote env is kept, since its reset waits for the server
            return True, lost
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            with suppress(Exception, SystemExit):  # the env may own a server or an engine
                env.close()
            self._envs[number] = self._make_env()
            return True, f"{type(error).__name__}: {error}"

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
