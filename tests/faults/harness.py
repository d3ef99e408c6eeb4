"""Run a command in a process that is killed, starved of disk or run in parallel, and compare its output.

Children are forked from a process that has imported everything, so that starting one takes milliseconds.
"""

import csv
import ctypes
import hashlib
import io
import json
import multiprocessing
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from groundling.cli.main import main
from groundling.io.files import LOCK
from tests.runs import TIME_KEYS

_FORK = multiprocessing.get_context("fork")
_TIMES = {*TIME_KEYS, "pairs_per_second", "versions", "rows_sha256"}
"""Keys that differ between two runs with the same seed, or between two machines."""
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Scenario:
    """A command and its output."""

    name: str
    words: Sequence[str]
    """The arguments of ``groundling``; ``{out}`` is replaced by the output folder."""
    output: str = "out"
    """The part of that folder that is compared, a folder or a file."""
    needs: str | None = None
    """The part of the materials that the folder must contain."""
    progress: Callable[[Path], int] = lambda output: 0
    """Returns the progress, given the output."""
    compared: Callable[[Path], Any] = lambda output: digest(output)
    """Returns what must equal the undisturbed result, given the output."""


def digest(output: Path) -> dict[str, str]:
    """Return the SHA-256 hash of each file's contents without times, by name."""
    paths = [output] if output.is_file() else sorted(p for p in output.rglob("*") if p.is_file())
    names = {path: path.relative_to(output).as_posix() for path in paths}
    # Manifests contain the hashes of files with times.
    ignored = ("manifest.json", LOCK, ".log")
    kept = {path: name for path, name in names.items() if "tensorboard/" not in name and not name.endswith(ignored)}
    return {name: hashlib.sha256(_without_times(path)).hexdigest() for path, name in kept.items()}


def _without_times(path: Path) -> bytes:
    """Return the contents of a file without times, or all of a damaged file."""
    try:
        match path.suffix:
            case ".yaml":
                return b"".join(line for line in path.open("rb") if not line.startswith(b"run_dir:"))
            case ".csv":
                rows: list[Any] = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
            case ".json" | ".jsonl":
                text = path.read_text(encoding="utf-8")
                rows = [json.loads(row) for row in (text.splitlines() if path.suffix == ".jsonl" else [text])]
            case _:
                return path.read_bytes()
        return json.dumps(_timeless(rows)).encode()
    except ValueError:
        return path.read_bytes()


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key not in _TIMES}
    return [_timeless(value) for value in content] if isinstance(content, list) else content


def rows_of(output: Path) -> int:
    """Return the number of complete lines in a run's metrics."""
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    """The exit status of its process; negative after a signal."""
    error: str
    """The output on standard error."""


def start(words: Sequence[str], folder: Path, prepare: Callable[[], object] = lambda: None) -> BaseProcess:
    """Start a command in ``folder``; its standard error is written to ``folder/stderr``."""
    process = _FORK.Process(target=_run, args=(tuple(words), folder, prepare))
    process.start()
    return process


def run(words: Sequence[str], folder: Path, prepare: Callable[[], object] = lambda: None) -> Ended:
    """Run a command from start to end."""
    process = start(words, folder, prepare)
    process.join()
    assert process.exitcode is not None
    return Ended(process.exitcode, errors_of(folder))


def errors_of(folder: Path) -> str:
    """Return the standard error of the last command in ``folder``."""
    return (folder / "stderr").read_text(encoding="utf-8", errors="replace")


def _run(words: Sequence[str], folder: Path, prepare: Callable[[], object]) -> None:
    os.setsid()  # so that its children are killed with it
    os.chdir(folder)
    torch.set_num_threads(1)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    with (folder / "stderr").open("w") as errors:
        os.dup2(errors.fileno(), 2)
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), line_buffering=True)
        sys.stdout = io.StringIO()
        prepare()
        status = main(list(words))
        sys.stderr.flush()
    os._exit(status)


def launched(words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in ``folder``, with two processes of torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "groundling"]
    alone = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{Path.cwd()}:{Path.cwd() / 'src'}"}
    with (folder / "stderr").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, *launcher, *words], cwd=folder, env=os.environ | alone, stdout=errors, stderr=errors
        )


def children_of(pid: int) -> list[str]:
    """Return the processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def kill(process: BaseProcess) -> None:
    """Kill a process and its children immediately."""
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # not in its group yet, or already ended
        process.kill()
    process.join()


def limit_files(size: int) -> Callable[[], None]:
    """Limit a process's files to ``size`` bytes, so that its writes fail as on a full disk."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return prepare


def without_rights() -> None:
    """Drop root's capabilities, such as writing to read-only folders; Python's own files remain readable."""
    if os.getuid() == 0:
        version_3 = struct.pack("Ii", 0x20080522, 0)  # see capset(2)
        assert ctypes.CDLL(None).capset(version_3, struct.pack("6I", *[0] * 6)) == 0


@dataclass
class Killed:
    """The result of a command that was killed and restarted until it ended by itself."""

    kills: int = 0
    lost: int = 0
    """The maximum cost of a kill: units that were completed and had to be repeated."""
    recovery: float = 0.0
    """The maximum time in seconds until the killed process's state was reached again."""
    refused: Ended | None = None
    """The result of the command, if its exit status was not 0."""


def kill_until_done(scenario: Scenario, folder: Path, moments: Sequence[float], seconds: float) -> Killed:
    """Kill a command at ``moments``, each a share of ``seconds`` after its start, and then let it end."""
    words = [word.replace("{out}", str(folder)) for word in scenario.words]
    output = folder / scenario.output
    result = Killed()
    reached = 0
    for moment in (*moments, None):
        process, began, recovered = start(words, folder), time.monotonic(), reached == 0
        before, lowest = reached, reached
        while process.is_alive() and (moment is None or time.monotonic() - began < moment * seconds):
            now = scenario.progress(output)
            lowest = min(lowest, now)
            if not recovered and now >= before and now > lowest:
                recovered = True
                result.recovery = max(result.recovery, time.monotonic() - began)
            time.sleep(POLL_SECONDS)
        if process.is_alive():
            kill(process)
            result.kills += 1
            reached = scenario.progress(output)
            result.lost = max(result.lost, before - lowest)
            continue
        process.join()
        result.lost = max(result.lost, before - lowest)
        if process.exitcode != 0:
            result.refused = Ended(process.exitcode or 0, errors_of(folder))
            return result
        reached = scenario.progress(output)
    return result
