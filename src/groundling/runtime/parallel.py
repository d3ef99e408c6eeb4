"""Run Groundling commands in parallel processes with one thread each."""

import ctypes
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

VARIABLE = "GROUNDLING_PARENT"  # Environment variable: id of the Groundling process that started this one
_TORCHRUN = "TORCHELASTIC_RUN_ID"  # Environment variable that torchrun and ``accelerate launch`` set
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have Linux kill this process when the thread that started it ends; kill it now if ``parent`` has ended."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before it was watched
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_launcher() -> None:
    """Call `end_with` for the process that started this command if it was Groundling or torchrun."""
    parent = os.environ.pop(VARIABLE, None)  # must not be inherited by child processes
    if parent is not None:
        end_with(int(parent))
    elif _TORCHRUN in os.environ:
        end_with(os.getppid())


_LAST_LINES = 5
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class CommandLine:
    """A command to run in a process."""

    name: str  # Name in progress reports
    words: Sequence[str]  # The arguments after ``groundling``
    log: Path  # File for all output; its folder is created
    after: str | None = None  # Name of a command that must finish first, if it is also being run


def run_parallel(lines: Sequence[CommandLine], processes: int, report: Callable[[str], None]) -> list[str]:
    """Run commands in parallel; return the names of those that failed, in the order of ``lines``.

    On Ctrl-C or SIGTERM, all commands are signalled to stop at a resumable point; a second signal kills them.
    """
    waiting, failed = list(lines), []
    running: dict[subprocess.Popen[bytes], tuple[CommandLine, float, TextIO]] = {}
    with _sigterm_as_interrupt():
        try:
            while waiting or running:
                busy = {line.name for line, _, _ in running.values()} | {line.name for line in waiting}
                ready = [line for line in waiting if line.after not in busy]
                if ready and len(running) < processes:
                    line = ready[0]
                    waiting.remove(line)
                    line.log.parent.mkdir(parents=True, exist_ok=True)
                    line.log.unlink(missing_ok=True)  # if it is a link, do not follow it
                    log: TextIO = line.log.open("w", encoding="utf-8")
                    running[_start(line.words, log)] = (line, time.monotonic(), log)
                    report(f"[{len(lines) - len(waiting)}/{len(lines)}] {line.name} started")
                    continue
                for process in [p for p in running if p.poll() is not None]:
                    line, started, log = running.pop(process)
                    log.close()
                    if process.returncode:
                        failed.append(line.name)
                        last = line.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
                        lines_of_log = "\n  ".join(["", *last, f"(full log: {line.log})"])
                        report(f"{line.name} failed ({process.returncode}): {lines_of_log}")
                    else:
                        report(f"{line.name} finished after {time.monotonic() - started:.0f} s")
                time.sleep(_POLL_SECONDS)
        except BaseException:
            _stop(list(running), report)
            raise
        finally:
            for _, _, log in running.values():
                log.close()
    return [line.name for line in lines if line.name in failed]


def _start(words: Sequence[str], log: TextIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "groundling", *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", VARIABLE: str(os.getpid())},
        start_new_session=True,  # so that a terminal's Ctrl-C reaches only this process
    )


def _stop(processes: "list[subprocess.Popen[bytes]]", report: Callable[[str], None]) -> None:
    if processes:
        report("stopping; interrupt again to stop immediately")
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
def _sigterm_as_interrupt() -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
