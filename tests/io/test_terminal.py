"""Output that cannot be written: the work continues, and the exit status is that of the work."""

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.training.tracking import read_metrics
from tests.thorough import THOROUGH

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
_TRAIN = [
    *("demo-easy", "world.num_envs=2", "training.steps=8", "world.num_steps=2", "device=cpu"),
    *("algorithm.args.minibatch_size=2", "algorithm.args.micro_batch_size=null"),
]
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
    """Run a line of Bash in a folder; $G is the command, $P Python."""
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
    assert (tmp_path / "work").read_text() == f"True {problem}"  # and no file is taken for the output


@THOROUGH
def test_a_training_without_output_is_complete(tmp_path: Path) -> None:
    done = _shell(f"$G train {' '.join(_TRAIN)} run_dir=run > /dev/full", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["update"] for row in read_metrics(tmp_path / "run")] == [1, 2]
    assert "warning: standard output cannot be written (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_only_prints_fails_without_output(tmp_path: Path) -> None:
    done = _shell("$G list judges > /dev/full", tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: standard output cannot be written")


def test_log_records_of_libraries_are_plain(caplog: pytest.LogCaptureFixture) -> None:
    assert main(["list", "judges"]) == 0
    logging.getLogger("a_library").warning("unexpected: %s\nthe end", "\x1b]0;a title\x07")
    assert caplog.messages == ["unexpected: �]0;a title�\nthe end"]


def test_warnings_of_libraries_are_lines_like_those_of_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # restores it
    assert main(["list", "judges"]) == 0
    text = warnings.formatwarning("unexpected: \x1b]0;a title\x07\nthe end", UserWarning, "library.py", 1)
    assert text == "warning: unexpected: �]0;a title� the end\n"


def test_a_warning_is_written_before_the_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, signal\n"
        "from groundling.io.terminal import warn\n"
        "from groundling.io.terminal import keep_writing\n"
        "keep_writing()\n"
        "warn('a judge does not answer')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = _shell("$P work.py 2> log; cat log", tmp_path)
    assert done.stdout == "warning: a judge does not answer\n"
