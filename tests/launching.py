"""Start processes that form one group, as with torchrun, but are forked, so that they share this process's imports."""

import contextlib
import io
import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO

import torch

from groundling.cli.main import main

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    exit_code: int
    output: str
    """Standard output and error."""


def launch(processes: int, work: Callable[[], int | None], timeout: float = 240) -> list[Ended]:
    """Call ``work`` in each of several processes, return their exit codes, and fail after ``timeout`` seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
    children = []
    for rank in range(processes):
        variables = {**shared, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
        receiving, sending = _FORK.Pipe(duplex=False)
        child = _FORK.Process(
            target=_work, args=({name: str(value) for name, value in variables.items()}, work, sending)
        )
        child.start()
        sending.close()  # so that the stream ends if a child dies
        children.append((child, receiving))
    ended = []
    try:
        for child, receiving in children:
            assert receiving.poll(timeout), "a process hangs"
            try:
                output = receiving.recv()
            except EOFError:  # the child died without output
                output = ""
            child.join(timeout)
            assert child.exitcode is not None, "a process hangs as it ends"
            ended.append(Ended(child.exitcode, output))
    finally:
        for child, _ in children:
            child.kill()
    return ended


def groundling(processes: int, *words: str) -> list[Ended]:
    """Run the command in each of several processes."""
    return launch(processes, lambda: main(list(words)))


class Forked:
    """A command in a forked process, with the interface of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], log: IO[str]) -> None:
        self._child = _FORK.Process(target=_work_into, args=(words, log))
        self._child.start()
        self.kill, self.terminate, self.wait = self._child.kill, self._child.terminate, self._child.join

    def poll(self) -> int | None:
        return self._child.exitcode

    @property
    def returncode(self) -> int | None:
        return self._child.exitcode


def _work_into(words: Sequence[str], log: IO[str]) -> None:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        code = main(list(words))
        log.flush()
    raise SystemExit(code)


def _work(variables: dict[str, str], work: Callable[[], int | None], sending: Connection) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = work()
    sending.send(output.getvalue())
    sending.close()
    raise SystemExit(code or 0)
