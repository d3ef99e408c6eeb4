"""Runs of NetHack's agents from a config: resumed, by several processes, misconfigured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling.configs.compose import compose
from groundling.configs.schema import Config
from groundling.errors import ConfigError
from groundling.judges.reward_model import Normalization
from groundling.judges.reward_models import reward_models
from groundling.training.nethack import NetHackCollector
from groundling.training.progress import TrainingProgress
from groundling.training.run import Run
from groundling.training.tracking import read_metrics

_SMALL = [
    "env.num_envs=4",
    "env.args={max_episode_steps: 7}",
    "nethack.num_workers=0",
    "nethack.ahead=false",
    "policy.args={hidden_size: 8, recurrence: 4}",
    "training.steps_per_update=4",
    "training.checkpoint_every=1",
    "device=cpu",
]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("reward_model")
    model = reward_models.create("motif")
    model.normalization = Normalization(0.0, 1.0, tuple(0.1 * i for i in range(-9, 10)))
    model.save(folder)
    return folder


def _config(*overrides: str) -> Config:
    return compose("motif/score", [*_SMALL, *overrides])


def _run(config: Config, folder: Path) -> Run:
    run = Run(config, folder, warn=print)
    assert isinstance(run.collector, NetHackCollector)
    return run


def _update(run: Run) -> dict:
    return run.update(TrainingProgress(Console(quiet=True), 1000, 0))


def test_a_resumed_run_has_everything_but_the_games(tmp_path: Path, reward_model: Path) -> None:
    config = _config(f"nethack.reward_model={reward_model}")
    first = _run(config, tmp_path)
    rows = [_update(first) for _ in range(3)]
    first.save()
    known = first.collector._table.state_dict()
    assert len(known["ids"]) > 1 and known["rewards"].isfinite().all()
    assert rows[1]["messages"] >= 1 and "score" in rows[1] and rows[1]["success_rate"] is None
    begun = [state["next_episode"] for state in first.collector.state_dict()]
    assert min(begun) == 2  # an episode lasts seven steps, and twelve were taken
    first.collector.close()

    second = _run(config, tmp_path)
    assert second.counters == first.counters and second.counters.update == 3
    again = second.collector._table.state_dict()
    assert all(torch.equal(known[name], again[name]) for name in known)
    assert [state["next_episode"] for state in second.collector.state_dict()] == begun
    for a, b in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    moments = [run.algorithm.optimizer.state_dict()["state"] for run in (first, second)]
    assert all(torch.equal(moments[0][i]["exp_avg_sq"], moments[1][i]["exp_avg_sq"]) for i in moments[0])
    for name, generator in first.generators.items():
        assert torch.equal(generator.get_state(), second.generators[name].get_state())
    assert _update(second)["update"] == 4
    assert min(state["next_episode"] for state in second.collector.state_dict()) == 3
    second.collector.close()


def test_two_processes_train_and_one_goes_on(tmp_path: Path, reward_model: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    more = [f"nethack.reward_model={reward_model}", "training.steps=32", f"run_dir={tmp_path}"]
    done = subprocess.run(
        [*launcher, "groundling", "train", "motif/score", *_SMALL, *more],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["step"] for row in read_metrics(tmp_path)] == [16, 32]
    alone = _run(_config(*more), tmp_path)
    assert alone.counters.update == 2 and len(alone.collector._table.state_dict()["ids"]) > 1
    assert len(alone.collector.state_dict()) == 4
    assert _update(alone)["step"] == 48
    alone.collector.close()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], "nethack.reward_model"),
        (["nethack.reward.count_exponents=2"], "count_exponent"),
        (["nethack.reward_model=/nowhere"], "distill"),
        (["nethack.reward.intrinsic_coefficient=0", "nethack.num_workers=9"], "num_workers"),
    ],
)
def test_mistakes_are_told(overrides: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        Run(_config(*overrides), tmp_path, warn=print)


def test_goals_count_as_success(tmp_path: Path) -> None:
    overrides = ["env.id=NetHackStaircase-v1", "nethack.reward.intrinsic_coefficient=0"]
    run = _run(compose("motif/goal", [*_SMALL, *overrides]), tmp_path)
    rows = [_update(run) for _ in range(2)]
    run.collector.close()
    assert rows[1]["success_rate"] == 0.0 and rows[1]["episode_length"] == 7.0
