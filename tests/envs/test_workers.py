"""Envs in worker processes."""

import sys
from pathlib import Path

import gymnasium
import pytest

from groundling import registry
from groundling.cli.main import main
from groundling.envs.make import TextEnvMaker
from groundling.envs.worker_pool import WorkerEnvs
from tests.envs.doors import Doors


def test_workers_with_pending_answers_end_silently(capfd: pytest.CaptureFixture[str]) -> None:
    """This happens if another worker's env has ended the run."""
    envs = WorkerEnvs(Doors, num_envs=2, num_workers=1, timeout=60, warn=print)
    for env in (0, 1):
        envs.send(env, "reset", 0)
    envs.receive(1)  # env 0's answer has arrived but has not been received
    envs.send(0, "step", "open red")
    (worker,) = envs.pool._workers
    envs.close()
    assert worker.process.returncode == 0 and capfd.readouterr().err == ""


def test_workers_import_the_commands_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may register a class of another module, with arguments that cannot be pickled."""
    (tmp_path / "registering.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('test/Foreign-v0', entry_point='tests.envs.doors:Games', kwargs={'by_range': lambda: 1})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["list", "worlds", "--import", "registering"]) == 0
    maker = TextEnvMaker.of("test/Foreign-v0")
    registry.imported_modules.remove("registering")
    assert maker.spec is None
    del gymnasium.registry["test/Foreign-v0"], sys.modules["registering"]  # as in a new process
    assert maker().unwrapped.by_range  # type: ignore[attr-defined]
