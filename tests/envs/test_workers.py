"""Envs in worker processes."""

import pytest

from groundling.envs.workers import WorkerEnvs
from tests.envs.doors import Doors


def test_a_worker_whose_answers_nobody_wants_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    """As where another worker's env has ended the run."""
    envs = WorkerEnvs(Doors, num_envs=2, num_workers=1, timeout=60, warn=print)
    for env in (0, 1):
        envs.send(env, "reset", 0)
    envs.receive(1)  # env 0's answer has come and is not taken
    envs.send(0, "step", "open red")
    (process,) = {worker._process for worker in envs._workers}
    envs.close()
    assert process.exitcode == 0 and capfd.readouterr().err == ""
