"""A run that is killed at any time and resumed ends like an undisturbed run."""

import errno
import fcntl
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from groundling.config.schema import Config, TrainingConfig
from groundling.errors import ConfigError, RunError
from groundling.registry import ComponentConfig
from groundling.training import checkpoint
from groundling.training.train import train
from groundling.worlds.text.collect import EnvCollector
from groundling.worlds.text.config import TextConfig, TextEvaluation
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)
from tests.runs import assert_equal_runs, figures
from tests.thorough import THOROUGH, one_in, thorough

_UPDATES = 6
_FORK = multiprocessing.get_context("fork")  # children share imported modules, so that starting one takes milliseconds


def _corridor(run_dir: Path) -> Config:
    return Config(
        name="corridor",
        run_dir=str(run_dir),
        device="cpu",
        world=TextConfig(env="test/Corridor-v0", num_envs=4, actions=["left", "right", "stay"], num_steps=10),
        policy=ComponentConfig(id="test-table"),
        algorithm=ComponentConfig(id="ppo", args={"learning_rate": 0.01, "minibatch_size": 16}),
        training=TrainingConfig(steps=_UPDATES * 4 * 10),
        evaluation=TextEvaluation(),
    )


def _starter(run_dir: Path) -> Config:
    return Config(
        name="starter",
        run_dir=str(run_dir),
        device="cpu",
        world=TextConfig(env="BabyAI-GoToRedBallNoDists-v0", num_envs=4, history=2, num_steps=4),
        policy=ComponentConfig(id="action_scoring", args={"value_hidden_sizes": [16]}),
        algorithm=ComponentConfig(id="ppo", args={"learning_rate": 1e-3, "minibatch_size": 8, "epochs": 1}),
        training=TrainingConfig(steps=_UPDATES * 4 * 4),
        evaluation=TextEvaluation(),
    )


def _train(config: Config) -> None:
    torch.set_num_threads(1)
    train(config, Console(quiet=True))


@pytest.fixture(scope="module")
def whole_corridor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the complete run of the corridor for comparison, which tests do not change."""
    run_dir = tmp_path_factory.mktemp("corridor") / "whole"
    _train(_corridor(run_dir))
    return run_dir


@pytest.fixture
def copied(whole_corridor: Path, tmp_path: Path) -> Path:
    """Return a copy of the corridor's run."""
    return Path(shutil.copytree(whole_corridor, tmp_path / "copied"))


def _updates_done(run_dir: Path) -> int:
    return max([int(p.name) for p in (run_dir / "checkpoints").glob("[0-9]*")], default=0)


def _run_and_kill(config: Config, kill: Callable[[multiprocessing.process.BaseProcess], None]) -> int:
    child = _FORK.Process(target=_train, args=(config,))
    child.start()
    kill(child)
    child.join()
    assert child.exitcode is not None
    return child.exitcode


@pytest.mark.parametrize(("make", "kills"), [(_corridor, 4), *thorough((_corridor, 12), (_starter, 5))])
def test_sigkill_at_random_moments(make: Callable[[Path], Config], kills: int, tmp_path: Path) -> None:
    began = time.monotonic()
    assert _run_and_kill(make(tmp_path / "whole"), lambda child: None) == 0
    seconds = time.monotonic() - began

    rng, killed, runs = random.Random(0), 0, itertools.count()
    while killed < kills:
        run_dir = tmp_path / f"killed-{next(runs)}"
        while True:
            before = _updates_done(run_dir)

            def kill(child: multiprocessing.process.BaseProcess) -> None:
                child.join(rng.uniform(0.1, 0.8) * seconds)
                child.kill()

            if _run_and_kill(make(run_dir), kill) == 0:
                break
            killed += 1
            assert _updates_done(run_dir) >= before
            assert len(figures(run_dir)) - _updates_done(run_dir) in (0, 1)  # at most one update is lost
        assert_equal_runs(tmp_path / "whole", run_dir)


def _train_killed_at_call(config: Config, function: str, call: int) -> None:
    """Train, and die of SIGKILL at the n-th call of a function that writes checkpoints."""
    calls, original = itertools.count(1), getattr(os, function)

    def counted(*args: object, **kwargs: object) -> object:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(os, function, counted)
    _train(config)


@pytest.mark.parametrize(
    ("function", "call"), one_in(2, ((f, n) for f in ("fsync", "rename") for n in (1, 2, 3, 5, 8, 13, 21, 30)))
)
def test_sigkill_while_a_checkpoint_is_written(function: str, call: int, whole_corridor: Path, tmp_path: Path) -> None:
    child = _FORK.Process(target=_train_killed_at_call, args=(_corridor(tmp_path / "killed"), function, call))
    child.start()
    child.join()
    assert child.exitcode in (-signal.SIGKILL, 0)
    if function == "fsync" and call <= 21:
        assert child.exitcode == -signal.SIGKILL
    _train(_corridor(tmp_path / "killed"))
    assert_equal_runs(whole_corridor, tmp_path / "killed")
    assert not list((tmp_path / "killed" / "checkpoints").glob(".partial-*"))


def test_a_half_deleted_checkpoint_is_removed(copied: Path) -> None:
    (copied / "checkpoints" / ".partial-000004").mkdir()
    _train(_corridor(copied))
    assert {path.name for path in (copied / "checkpoints").iterdir()} == {"000005", "000006"}


def test_one_seed_gives_one_trajectory_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        config = _corridor(tmp_path / name)
        config.seed = seed
        _train(config)
    assert_equal_runs(tmp_path / "a", tmp_path / "b")
    assert figures(tmp_path / "a") != figures(tmp_path / "c")


@pytest.mark.filterwarnings("ignore:checkpoint")
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_broken_checkpoint_is_skipped_with_a_warning(damage: str, whole_corridor: Path, copied: Path) -> None:
    last = copied / "checkpoints" / f"{_UPDATES:06d}"
    file = last / ("manifest.json" if damage == "manifest" else "table.safetensors")
    content = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    elif damage == "flip":
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    warnings: list[str] = []
    fallback = checkpoint.latest(last.parent, warnings.append)
    assert fallback is not None and fallback.name == f"{_UPDATES - 1:06d}"
    assert len(warnings) == 1 and str(last) in warnings[0]
    _train(_corridor(copied))
    assert_equal_runs(whole_corridor, copied)


def test_a_full_disk_keeps_earlier_checkpoints(
    whole_corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        if _updates_done(tmp_path / "full") == 3:
            raise OSError(28, "No space left on device")
        original(folder)

    original = checkpoint.seal
    monkeypatch.setattr(checkpoint, "seal", full)
    with pytest.raises(RunError, match="No space left"):
        _train(_corridor(tmp_path / "full"))
    assert _updates_done(tmp_path / "full") == 3
    monkeypatch.undo()
    _train(_corridor(tmp_path / "full"))
    assert_equal_runs(whole_corridor, tmp_path / "full")


def test_another_configuration_is_refused_and_the_run_unchanged(copied: Path) -> None:
    config = _corridor(copied)
    before = {p: p.read_bytes() for p in copied.rglob("*") if p.is_file()}
    config.algorithm.args["learning_rate"] = 0.5
    with pytest.raises(ConfigError, match=r"learning_rate.*0\.01.*0\.5"):
        _train(config)
    assert before == {p: p.read_bytes() for p in copied.rglob("*") if p.is_file()}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_errors_of_locks_are_reported(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(RunError, match=r"cannot lock .*Input/output error.*run_dir"):
            _train(_corridor(tmp_path))
        return
    with pytest.warns(UserWarning, match=f"{tmp_path}: this file system lacks locks"):
        _train(_corridor(tmp_path))
    assert _updates_done(tmp_path) == _UPDATES


def test_ctrl_c_finishes_the_update_and_resumes(whole_corridor: Path, tmp_path: Path) -> None:
    def interrupt(child: multiprocessing.process.BaseProcess) -> None:
        while _updates_done(tmp_path / "stopped") < 2 and child.is_alive():
            time.sleep(0.001)
        if child.pid is not None:
            os.kill(child.pid, signal.SIGINT)

    assert _run_and_kill(_corridor(tmp_path / "stopped"), interrupt) == 0
    _train(_corridor(tmp_path / "stopped"))
    assert_equal_runs(whole_corridor, tmp_path / "stopped")


@pytest.mark.parametrize("floor", [0.0, 1e-6])
def test_entropy_collapse_stops_a_run_until_its_floor_is_lowered(
    floor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _corridor(tmp_path)
    config.world.entropy_floor = 10.0  # above the maximum entropy of three actions
    with pytest.raises(RunError, match=r"entropy_coefficient.*entropy_floor=0 to continue"):
        _train(config)
    assert _updates_done(tmp_path) == 5
    config.world.entropy_floor = floor
    collect = EnvCollector.collect
    monkeypatch.setattr(EnvCollector, "collect", lambda *args, **options: (collect(*args, **options)[0], []))
    _train(config)
    assert _updates_done(tmp_path) == _UPDATES


@THOROUGH
@pytest.mark.parametrize(
    ("args", "advice"),
    [
        *thorough(({}, r"normalize=sum .* set policy\.id=action_writing")),
        ({"normalize": "token"}, r"raise policy\.args\.temperature=1, which"),
    ],
)
def test_a_policy_that_never_explored_gets_specific_advice(args: dict[str, Any], advice: str, tmp_path: Path) -> None:
    config = _starter(tmp_path)
    hasty = {"at_once": 0}  # two steps per episode, so that some fail in every update
    config.world = TextConfig(env="test/Hasty-v0", args=hasty, num_envs=4, num_steps=8, entropy_floor=10.0)
    config.policy.args.update(args)
    config.training.steps = 6 * 32
    with pytest.raises(RunError, match=rf"from the first update onward, .*: it never explored\. .*{advice}"):
        _train(config)


def test_a_run_that_never_began_does_not_claim_its_folder(tmp_path: Path) -> None:
    config = _corridor(tmp_path)
    config.policy.id = "random"
    with pytest.raises(ConfigError, match="no weights"):
        _train(config)
    _train(_corridor(tmp_path))
    assert _updates_done(tmp_path) == _UPDATES


@pytest.mark.filterwarnings("ignore:checkpoint")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "manifest.json").write_text("{}"), "only broken checkpoints"),
        (shutil.rmtree, "no checkpoint to resume from"),
    ],
)
def test_metrics_without_a_checkpoint_are_kept(damage: Callable[[Path], Any], message: str, copied: Path) -> None:
    before = (copied / "metrics.jsonl").read_text()
    for path in checkpoint.list_checkpoints(copied / "checkpoints"):
        damage(path)
    with pytest.raises(RunError, match=message):
        _train(_corridor(copied))
    assert (copied / "metrics.jsonl").read_text() == before


def test_a_run_cannot_be_shortened_below_its_checkpoint(copied: Path) -> None:
    config = _corridor(copied)
    before = (copied / "config.yaml").read_text()
    config.training.steps = (_UPDATES - 1) * 4 * 10
    with pytest.raises(ConfigError, match=r"longer than training.steps=200: set run_dir"):
        _train(config)
    assert (copied / "config.yaml").read_text() == before
    config.training.steps += 1  # in addition to the last update
    _train(config)


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for update in (999_998, 999_999, 1_000_000, 1_000_001):
        checkpoint.save(tmp_path, update, lambda folder: checkpoint.write_json(folder / "run.json", {}), keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"1000000", "1000001"}
    latest = checkpoint.latest(tmp_path, print)
    assert latest is not None and latest.name == "1000001"


@THOROUGH
def test_an_env_that_ignores_seeds_is_refused(tmp_path: Path) -> None:
    for seed in range(1, 6):  # one of five tasks is sometimes sampled again
        config = _starter(tmp_path / str(seed))
        config.training = TrainingConfig(steps=16)
        config.world = TextConfig(
            env="BabyAI-MixedTrainLocal-v0", args={"draw_task": "construction"}, num_envs=4, history=1, num_steps=4
        )
        _train(config)
    with pytest.raises(RunError, match="the same seed does not always produce the same episode"):
        for seed in range(1, 6):
            config.run_dir = str(tmp_path / str(seed))
            _train(config)
