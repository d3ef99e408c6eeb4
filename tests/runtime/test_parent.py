"""Processes end with the process that started them, even if it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest

from groundling.envs.worker_pool import WorkerEnvs
from groundling.runtime.parallel import VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux offers it")
_SECONDS = 2.0
_ASLEEP = "import os, time\nfrom pathlib import Path\nPath('pid').write_text(str(os.getpid()))\ntime.sleep(60)\n"
_ROOT = Path(__file__).resolve().parents[2]


class Sleeper(gymnasium.Env[int, int]):
    """An env that hangs in reset."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[int, dict[str, object]]:
        exec(_ASLEEP)
        return 0, {}


def start_hanging_worker() -> None:
    """Wait for an env that hangs in a worker process."""
    envs = WorkerEnvs(Sleeper, 1, 1, 60.0, print)
    envs.send(0, "reset", 1)
    envs.receive(0)


_COMMAND = "[sys.executable, '-m', 'groundling', 'doctor', '--import', 'asleep']"
PARENTS = {
    "a worker of envs": "from tests.runtime.test_parent import start_hanging_worker\nif __name__ == '__main__':\n"
    "    start_hanging_worker()",
    "a study's process": "from pathlib import Path\nfrom groundling.runtime.parallel import CommandLine, run_parallel\n"
    "run_parallel([CommandLine('a', ['doctor', '--import', 'asleep'], Path('log'))], 1, print)",
    "torchrun's process": "import os, subprocess, sys\nos.environ['TORCHELASTIC_RUN_ID'] = 'x'\n"
    f"subprocess.run({_COMMAND})",
}


@pytest.mark.parametrize("name", PARENTS)
def test_a_process_ends_with_its_parent(name: str, tmp_path: Path) -> None:
    (tmp_path / "asleep.py").write_text(_ASLEEP)
    (tmp_path / "parent.py").write_text(PARENTS[name])
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([sys.executable, "parent.py"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    assert child != parent.pid and _runs(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + _SECONDS
    while _runs(child):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail(f"{name} outlives its parent")
        time.sleep(0.02)


def test_a_process_whose_parent_has_ended_ends_at_once() -> None:
    words = [sys.executable, "-m", "groundling", "doctor"]
    parent_id = str(2**22 + 1)  # no process has such an id
    done = subprocess.run(words, env={**os.environ, VARIABLE: parent_id}, capture_output=True)
    assert done.returncode == -signal.SIGKILL and not done.stdout


def _runs(process: int) -> bool:
    """Return True if a process is running; zombies are not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
