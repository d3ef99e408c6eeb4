"""If output cannot be written, the work continues, and the exit status is that of the work."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from groundling.cli.main import main

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
_WORK = """
import sys, time
from rich.console import Console
from groundling.io.terminal import keep_writing, problem
keep_writing()
for number in range(3):
    time.sleep(0.05)  # the reader has ended by then
    Console().print("a line of progress")
    print("a warning", file=sys.stderr, flush=True)
with open("work", "w") as file:
    file.write(f"{file.fileno() > 2} {problem()}")
"""


def _shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of Bash in a folder; $G is the command, and $P is Python."""
    script = f"set -o pipefail; P='{sys.executable}'; G='{sys.executable} -m groundling'; {line}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=folder, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("$P work.py | true", None),
        ("$P work.py 2>&1 | true", None),
        ("$P work.py > /dev/full", "No space left on device"),
        ("$P work.py > /dev/full 2>&1", "No space left on device"),
        ("$P work.py 2> /dev/full", None),
        ("$P work.py >&- 2>&- <&-", None),
    ],
)
def test_work_continues_without_output(line: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(_WORK)
    done = _shell(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()) <= {"a warning"}
    assert (tmp_path / "work").read_text() == f"True {problem}"  # and no file is mistaken for the output


def test_a_command_that_only_prints_fails_without_output(tmp_path: Path) -> None:
    done = _shell("$G list judges > /dev/full", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: cannot write to standard output")


def test_log_records_of_libraries_are_plain(caplog: pytest.LogCaptureFixture) -> None:
    assert main(["list", "judges"]) == 0
    logging.getLogger("a_library").warning("unexpected: %s\nthe end", "\x1b]0;a title\x07")
    assert caplog.messages == ["unexpected: �]0;a title�\nthe end"]
