"""Envs in worker processes."""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from groundling import registry
from groundling.cli.main import main
from groundling.envs.make import TextEnvMaker
from groundling.envs.vector import TextVectorEnv
from groundling.envs.worker_pool import EnvLost, WorkerEnvs
from groundling.errors import RunError
from groundling.training.tracking import read_metrics
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


class Stuck(Doors):
    """Is lost, as if its worker hung, at the first step of some episodes, and of all while the file ``flag`` exists."""

    def __init__(self, flag: str = "") -> None:
        super().__init__()
        self.flag = flag

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.hangs = seed in (0, 1, 3, 4, 6, 7, 8)
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.hangs or (self.flag and Path(self.flag).exists()):
            raise EnvLost("has not answered for 1 s")
        observation, _, _, _, info = super().step("")
        return observation, 0.0, True, False, info


gymnasium.register("test/Stuck-v0", entry_point=Stuck)


def test_an_env_whose_episodes_all_hang_ends_the_run() -> None:
    envs = TextVectorEnv(Stuck, 1, None, lambda env, number: number, warn=lambda text: None)
    envs.reset()
    for _ in range(8):  # never more than two in a row
        envs.step([0])
    assert envs.incidents.cut_episodes == 6
    reason = "it has not answered for 1 s, twice at this step, and its last 3 episodes were all cut off"
    with pytest.raises(RunError, match=f"seed 8, step 0: {reason}: fix .* increase world.timeout, and continue"):
        envs.step([0])


def test_a_run_that_a_hanging_env_ended_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, flag = tmp_path / "run", tmp_path / "flag"
    words = ["train", "demo-easy", "world.env=test/Stuck-v0", "~world.args", f"+world.args={{flag: {flag}}}"]
    words += ["world.num_envs=2", "world.num_steps=2", "training.checkpoint_every=1", "device=cpu", f"run_dir={run}"]
    assert main([*words, "training.steps=4"]) == 0
    flag.touch()
    assert main([*words, "training.steps=16"]) == 1
    assert "last 3 episodes were all cut off: fix the env" in capsys.readouterr().err
    assert len(read_metrics(run)) == 2  # each env had lost two episodes by then
    flag.unlink()
    assert main([*words, "training.steps=16"]) == 0
    assert [row["step"] for row in read_metrics(run)] == [4, 8, 12, 16]
