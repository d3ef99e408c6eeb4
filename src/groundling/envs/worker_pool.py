"""Worker processes that step envs, of text worlds and NetHack alike."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from typing import Any, Protocol

from groundling.errors import ConfigError, RunError
from groundling.runtime.parent import end_with

_START_SECONDS = 120.0
_MOST_LOSSES = 3  # Losses of a worker in a row, without an answer between them


class Handler(Protocol):
    """Answers commands in a worker process; an exception in `answer` ends the process."""

    def answer(self, key: Any, value: Any) -> Any:
        """Carry out a command."""

    def close(self) -> None:
        """Close the envs."""


MakeHandler = Callable[[bool], Handler]  # the argument is True if it replaces a lost worker's


class WorkerLost(Exception):
    """A worker died or hung, and was started again."""

    def __init__(self, reason: str, hung: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung


class WorkerPool:
    """Processes that each carry out commands in the order in which they are sent.

    Args:
        make_handlers: The maker of each worker's handler; pickled, so a module's function or a `partial` of one.
        timeout: Seconds without an answer after which a worker counts as hung.
        on_lost: Called with a worker's number and its loss.
        resend: Send a new worker the commands that the lost one had not answered.

    Raises:
        ConfigError: A handler cannot be made in another process.
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
        inherited = {**os.environ, **(environment or {})}, tuple(file_descriptors)
        self._workers = [_Worker(_pickled(make), *inherited) for make in make_handlers]

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def send(self, worker: int, key: Hashable, value: Any = None) -> None:
        """Send a command; `receive` returns its answer under the same key."""
        self._workers[worker].send(key, value)

    def receive(self, worker: int, key: Hashable) -> Any:
        """Wait for the next answer under a key; raise `WorkerLost` unless ``resend``, `RunError` after many losses."""
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
    """A process, and its answers that have not been received yet."""

    def __init__(self, handler: bytes, environment: Mapping[str, str], file_descriptors: tuple[int, ...]):
        self._handler, self._environment, self._inherited = handler, environment, file_descriptors
        self.losses = 0  # since the last answer
        self._unanswered: list[tuple[Hashable, Any]] = []
        self._start(restarted=False)

    def send(self, key: Hashable, value: Any) -> None:
        self._unanswered.append((key, value))
        with suppress(BrokenPipeError, ConnectionResetError):  # reported when the answer is awaited
            self.pipe.send((key, value))

    def receive(self, key: Hashable, timeout: float) -> Any:
        while not self._answers.get(key):
            self._read(timeout if self._is_ready else _START_SECONDS)
        return self._answers[key].pop(0)

    def restart(self, resend: bool) -> None:
        self.pipe.close()
        self.end(patience=0.0)
        self._start(restarted=True)
        commands, self._unanswered = self._unanswered, []
        for command in commands if resend else ():
            self.send(*command)

    def end(self, patience: float) -> None:
        """Wait for the process, whose pipe is closed, or kill it after ``patience`` seconds."""
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
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((os.getpid(), _main_module(self._handler), restarted))
            self.pipe.send_bytes(self._handler)

    def _read(self, timeout: float) -> None:
        try:
            if not self.pipe.poll(timeout):
                self.losses += 1
                raise WorkerLost(f"has not answered for {timeout:g} s", hung=True)
            key, value = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.losses += 1
            code = self.process.wait()
            raise WorkerLost(f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}") from None
        if not self._is_ready:
            self._is_ready = True
            return
        self.losses = 0
        self._unanswered.pop(next(i for i, (sent, _) in enumerate(self._unanswered) if sent == key))
        self._answers.setdefault(key, []).append(value)


def _pickled(make_handler: MakeHandler) -> bytes:
    try:
        return pickle.dumps(make_handler)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"the env cannot be made in a worker process ({error}): register a class or function of a module, or set "
            "world.num_workers=0"
        ) from error


def _main_module(pickled: bytes) -> str | None:
    """Return the path of the running script if the worker has to import it for its definitions."""
    return getattr(sys.modules["__main__"], "__file__", None) if b"__main__" in pickled else None


def _serve(pipe: Connection) -> None:
    parent, main, restarted = pipe.recv()
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the commands
    if main is not None:
        spawn.import_main_path(main)
    # Not a file's bytes: the parent process sent them through a pipe that only it and this process hold.
    handler: Handler = pickle.loads(pipe.recv_bytes())(restarted)
    with suppress(EOFError, ConnectionError):  # the pipe is closed
        pipe.send((None, None))  # ready
        while True:
            key, value = pipe.recv()
            pipe.send((key, handler.answer(key, value)))
    handler.close()


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
