"""Command lines of this library beside each other: so many processes at a time, of one thread each."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from groundling.runtime.parent import VARIABLE

_LAST_LINES = 5
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class CommandLine:
    """What one process does."""

    name: str
    """What it is called where its start and end are shown."""
    words: Sequence[str]
    """What follows ``groundling``."""
    log: Path
    """The file for all that it prints; its folder is made."""
    after: str | None = None
    """The name of the command line that has to end first, if that is among those that are run."""


def run_beside(lines: Sequence[CommandLine], processes: int, tell: Callable[[str], None]) -> list[str]:
    """Run the command lines, ``processes`` at a time.

    Ctrl-C (or SIGTERM) asks all of them to stop where they can go on from, and waits; once more ends them at once.

    Args:
        lines: What to run, in this order, but for those that wait for others.
        processes: How many run at a time.
        tell: Is told of each one's start and end.

    Returns:
        The names of those that failed, in the order of ``lines``.
    """
    waiting, failed = list(lines), []
    running: dict[subprocess.Popen[bytes], tuple[CommandLine, float, TextIO]] = {}
    with _terminated_is_interrupted():
        try:
            while waiting or running:
                busy = {line.name for line, _, _ in running.values()} | {line.name for line in waiting}
                ready = [line for line in waiting if line.after not in busy]
                if ready and len(running) < processes:
                    line = ready[0]
                    waiting.remove(line)
                    line.log.parent.mkdir(parents=True, exist_ok=True)
                    line.log.unlink(missing_ok=True)  # a link would have another file overwritten
                    log: TextIO = line.log.open("w", encoding="utf-8")
                    running[_start(line.words, log)] = (line, time.monotonic(), log)
                    tell(f"[{len(lines) - len(waiting)}/{len(lines)}] {line.name} begins")
                    continue
                for process in [p for p in running if p.poll() is not None]:
                    line, started, log = running.pop(process)
                    log.close()
                    if process.returncode:
                        failed.append(line.name)
                        tell(f"{line.name} failed ({process.returncode}): {_last_lines(line.log)}")
                    else:
                        tell(f"{line.name} is done after {time.monotonic() - started:.0f} s")
                time.sleep(_POLL_SECONDS)
        except BaseException:
            _stop(list(running), tell)
            raise
        finally:
            for _, _, log in running.values():
                log.close()
    return [line.name for line in lines if line.name in failed]


def _start(words: Sequence[str], log: TextIO) -> "subprocess.Popen[bytes]":
    """A process in a group of its own: a terminal's Ctrl-C reaches only this one, which passes it on once."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "groundling", *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **threads, VARIABLE: str(os.getpid())},
        start_new_session=True,
    )


def _stop(processes: "list[subprocess.Popen[bytes]]", tell: Callable[[str], None]) -> None:
    if processes:
        tell("stopping; interrupt once more to stop at once")
    try:
        for process in processes:
            process.terminate()  # not SIGINT, which a shell's background processes ignore
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n  ".join(["", *lines[-_LAST_LINES:], f"(the whole log: {log})"])
