"""Worker processes as their owner sees them: started, told, heard, and started again when they die or hang."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from groundling.envs.nethack.shared import SharedArrays
from groundling.envs.nethack.stepping import EnvSpec
from groundling.envs.nethack.worker import READY
from groundling.errors import RunError

_START_TIMEOUT = 120.0  # seconds
_MOST_RESTARTS = 3
"""So often in a row may a worker be lost without one answer in between."""


@dataclass
class Incidents:
    """What went wrong so far, and was mended."""

    crashed_envs: int = 0
    """Exceptions in envs; each was made anew."""
    dead_workers: int = 0
    """Workers that ended; each was started anew."""
    hung_workers: int = 0
    """Workers that did not answer in time; each was killed and started anew."""
    cut_episodes: int = 0
    """Episodes that were lost with their env."""


class WorkerPool:
    """Workers that each step a share of every group.

    Args:
        groups: First env of each group, and the one after its last.
        timeout: Seconds without an answer after which a worker counts as hung.
        incidents: Where lost workers are counted.
        warn: Told of each lost worker.
    """

    def __init__(
        self,
        spec: EnvSpec,
        memory: SharedArrays,
        groups: list[tuple[int, int]],
        num_workers: int,
        timeout: float,
        temporary: str,
        incidents: Incidents,
        warn: Callable[[str], None],
    ) -> None:
        self._timeout, self._incidents, self._warn = timeout, incidents, warn
        shares = [np.linspace(start, stop, num_workers + 1).astype(int).tolist() for start, stop in groups]
        self.workers = [
            _Worker(spec, memory, [(share[w], share[w + 1]) for share in shares], temporary)
            for w in range(num_workers)
        ]

    def send(self, command: int) -> None:
        for worker in self.workers:
            worker.send(command)

    def answer(self, command: int) -> list[str]:
        """Wait until every worker has done what it was told. Returns what went wrong in single envs, in words.

        Raises:
            RunError: a worker is lost again and again.
        """
        return [crash for w in range(len(self.workers)) for crash in self._answer(w, command)]

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        for worker in self.workers:
            worker.join(patience=2.0)

    def _answer(self, w: int, command: int) -> list[str]:
        worker = self.workers[w]
        for _ in range(_MOST_RESTARTS + 1):
            try:
                return worker.answer(command, self._timeout)
            except _WorkerLost as lost:
                reason = str(lost)
                self._incidents.hung_workers += lost.hung
                self._incidents.dead_workers += not lost.hung
                self._warn(f"NetHack worker {w} {reason}; it is started anew and its episodes are lost")
                worker.restart()
        raise RunError(
            f"NetHack worker {w} was lost {_MOST_RESTARTS + 1} times in a row; at last it {reason}"
        )


class _WorkerLost(Exception):
    """The process is gone, or does not answer."""

    def __init__(self, reason: str, hung: bool) -> None:
        super().__init__(reason)
        self.hung = hung


class _Worker:
    """One worker process, and what it was told and has answered."""

    def __init__(
        self, spec: EnvSpec, memory: SharedArrays, slices: list[tuple[int, int]], temporary: str
    ) -> None:
        self._spec, self._memory, self._slices, self._temporary = spec, memory, slices, temporary
        self._outstanding: list[int] = []
        self._answers: dict[int, list[str]] = {}
        self._start(lost=False)

    def send(self, command: int) -> None:
        self._outstanding.append(command)
        self._write(command)

    def answer(self, command: int, timeout: float) -> list[str]:
        """Wait for a command's answer.

        Raises:
            _WorkerLost: the process is gone, or has not answered after ``timeout`` seconds.
        """
        while command not in self._answers:
            self._read(timeout if self._ready else _START_TIMEOUT)
        return self._answers.pop(command)

    def restart(self) -> None:
        """Put a new process in this one's place, and tell it again what has not been answered."""
        self.end()
        self.process.kill()
        self.join()
        self._start(lost=True)
        for command in self._outstanding:
            self._write(command)

    def end(self) -> None:
        """Let the process end: it does when it can be told nothing more."""
        os.close(self._commands)

    def join(self, patience: float = 10.0) -> None:
        """Wait for the end, or force it after ``patience`` seconds."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._replies)

    def _start(self, lost: bool) -> None:
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        self._ready, self._unread = False, b""
        settings = {"spec": self._spec.to_json(), "slices": self._slices, "lost": lost, "parent": os.getpid()}
        fds = (commands, replies, self._memory.fd)
        environment = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": self._temporary,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "groundling.envs.nethack.worker", *map(str, fds), json.dumps(settings)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=2,  # NetHack's last words, if any, stand beside Python's
            env={**os.environ, **environment},
        )
        os.close(commands)
        os.close(replies)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)

    def _write(self, command: int) -> None:
        with suppress(BrokenPipeError):  # that the process is gone shows when its answer is waited for
            os.write(self._commands, bytes([command]))

    def _read(self, timeout: float) -> None:
        """Take in what the process has to say."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            if not self._poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise _WorkerLost(f"has not answered for {timeout:g} s", hung=True)
            received = os.read(self._replies, 1 << 16)
            if not received:
                code = self.process.wait()
                raise _WorkerLost(
                    f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}", hung=False
                )
            self._unread += received
        line, self._unread = self._unread.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        if reply["command"] == READY:
            self._ready = True
            return
        self._outstanding.remove(reply["command"])
        self._answers[reply["command"]] = reply["crashes"]
