"""NetHack runs from a config: resumed, with several processes, misconfigured."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.errors import ConfigError
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.target import Target
from groundling.judges.reward_models import reward_models
from groundling.judges.reward_models.reward_model import Normalization
from groundling.training.checkpoint import latest
from groundling.training.tracking import TrainingProgress, read_metrics
from groundling.training.train import train
from groundling.training.trainer import Trainer
from groundling.worlds.nethack.collect import NetHackCollector
from groundling.worlds.nethack.frames import make_message_scores, view
from tests.launching import groundling

_PART = "reward.reward_model.args"
_SMALL = [
    *("world.num_envs=4", "world.args={max_episode_steps: 7}", "world.num_workers=0"),
    *("world.ahead=false", "policy.args={hidden_size: 8, recurrence: 4}", "world.num_steps=4"),
    *("training.checkpoint_every=1", "device=cpu"),
]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("reward_model"), seed=0)


def _config(*overrides: str) -> Config:
    return compose("motif/score", [*_SMALL, *overrides])


def _run(config: Config, folder: Path) -> Trainer:
    run = Trainer(config, folder, warn=print)
    assert isinstance(run.collector, NetHackCollector)
    return run


def _update(run: Trainer) -> dict:
    return run.update(TrainingProgress(Console(quiet=True), 1000, 0))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_resumed_run_has_everything_but_the_games(tmp_path: Path, reward_model: Path, ahead: bool) -> None:
    config = _config(f"{_PART}.path={reward_model}", f"world.ahead={ahead}")
    first = _run(config, tmp_path)
    rows = [_update(first) for _ in range(3)]
    if ahead:  # a fourth rollout has started, and is lost
        first.collector._next.result()
    first.save()
    known = first.collector.reward.parts["reward_model"]._table.state_dict()
    assert len(known["ids"]) > 1 and known["rewards"].isfinite().all()
    assert rows[1]["messages"] >= 1 and "score" in rows[1] and rows[1]["success_rate"] is None
    begun = [state["next_episode"] for state in first.collector.state_dict()]
    assert min(begun) == 2 + ahead  # an episode lasts seven steps, and twelve or sixteen steps were taken
    first.collector.close()

    second = _run(config, tmp_path)
    assert second.counters == first.counters and second.counters.update == 3
    again = second.collector.reward.parts["reward_model"]._table.state_dict()
    assert all(torch.equal(known[name], again[name]) for name in known)
    assert [state["next_episode"] for state in second.collector.state_dict()] == begun
    for a, b in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    moments = [run.algorithm.optimizer.state_dict()["state"] for run in (first, second)]
    assert all(torch.equal(moments[0][i]["exp_avg_sq"], moments[1][i]["exp_avg_sq"]) for i in moments[0])
    for name, generator in first.generators.items():
        assert torch.equal(generator.get_state(), second.generators[name].get_state())
    row = _update(second)
    assert (row["update"], row["step"]) == (4, 64)
    assert min(state["next_episode"] for state in second.collector.state_dict()) > min(begun)
    second.collector.close()


def test_two_processes_train_and_one_resumes(tmp_path: Path, reward_model: Path) -> None:
    more = [f"{_PART}.path={reward_model}", "training.steps=32", f"run_dir={tmp_path}"]
    ended = groundling(2, "train", "motif/score", *_SMALL, *more)
    assert [process.exit_code for process in ended] == [0, 0], ended
    assert [row["step"] for row in read_metrics(tmp_path)] == [16, 32]
    alone = _run(_config(*more), tmp_path)
    assert alone.counters.update == 2
    assert len(alone.collector.reward.parts["reward_model"]._table.state_dict()["ids"]) > 1
    assert len(alone.collector.state_dict()) == 4
    assert _update(alone)["step"] == 48
    alone.collector.close()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "set path to a folder"),
        ([f"{_PART}.count_exponents=2"], "count_exponent"),
        ([f"{_PART}.path=/nowhere"], "distill"),
        (["~reward.reward_model", "world.num_workers=9"], "num_workers"),
        ([f"{_PART}.normalize='no'"], f"{_PART}.normalize must be true or false, got 'no'"),
        ([f"{_PART}.online={{judge: rules, learning: {{train_all: 3}}}}"], "train_every"),
        ([f"{_PART}.online.judge=openai"], r"judge 'openai' needs model"),
        ([f"{_PART}.online.judge=rules", f"{_PART}.online.prompt=polite"], "unknown prompt 'polite'"),
        (["world.history=1", "~reward.reward_model"], "world.history"),
        (["evaluation.every=1", "~reward.reward_model"], "evaluation.every"),
        (["world.args.max_steps=5", "world.num_workers=1", "~reward.reward_model"], "max_steps"),
    ],
)
def test_mistakes_are_reported(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(_config(*overrides), tmp_path, warn=print)


def _save(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    model = reward_models.create("motif")
    model.normalization = Normalization(0.0, 1.0, tuple(0.1 * i for i in range(-9, 10)))
    model.save(folder)
    return folder


def test_a_run_may_move_but_not_change_its_reward_model(tmp_path: Path) -> None:
    run_dir, model = tmp_path / "run", _save(tmp_path / "model", seed=0)
    small = [*_SMALL, f"run_dir={run_dir}", "training.steps=16"]
    quiet = Console(quiet=True)
    assert train(compose("motif/score", [*small, f"{_PART}.path={model}"]), quiet, print)
    moved = model.rename(tmp_path / "moved")
    more = ["training.steps=32", f"{_PART}.path={moved}", "world.num_workers=1", "device=auto"]
    assert train(compose("motif/score", [*small, *more]), quiet, print)
    assert [row["step"] for row in read_metrics(run_dir)] == [16, 32]
    other = _save(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="is not the reward model that"):
        train(compose("motif/score", [*small, *more, f"{_PART}.path={other}"]), quiet, print)
    with pytest.raises(ConfigError, match=r"algorithm.args.gamma"):
        train(compose("motif/score", [*small, *more, "algorithm.args.gamma=0.5"]), quiet, print)


def test_evaluation_uses_the_model_learnt_online(tmp_path: Path) -> None:
    config = _config(f"{_PART}.online.judge=rules", "evaluation.baselines=[]")
    run = _run(config, tmp_path)
    _update(run)
    run.save()
    run.collector.close()
    checkpoint = latest(tmp_path / "checkpoints", print)
    assert make_message_scores(config.reward, "cpu") is None  # the config contains no model, because there was none
    scores = make_message_scores(config.reward, "cpu", checkpoint)
    text = "You kill the newt!"
    message = text.encode().ljust(256, b"\0")
    learnt = run.collector.reward.parts["reward_model"]._online.model.rewards([text]).item()
    assert scores.of([message])[0].raw == pytest.approx(learnt)
    target = Target("trained", tmp_path, config, checkpoint)
    assert "intrinsic_return" in evaluate(target, "held-out", 2)["trained"].figures()
    sample, *_ = json.loads((tmp_path / "samples" / "held-out.json").read_text())
    assert "normalised" in view(config.reward, "cpu", tmp_path, sample).frames[0].lines[0]

    part = config.reward["reward_model"]
    named = part.model_copy(update={"args": {**part.args, "path": str(_save(tmp_path / "model", seed=3))}})
    both = {"reward_model": named}
    assert make_message_scores(both, "cpu", checkpoint).of([message])[0].raw == scores.of([message])[0].raw
    assert make_message_scores(both, "cpu").of([message])[0].raw != scores.of([message])[0].raw


def test_goals_count_as_success(tmp_path: Path) -> None:
    overrides = ["world.env=NetHackStaircase-v1", "~reward.reward_model"]
    run = _run(compose("motif/goal", [*_SMALL, *overrides]), tmp_path)
    rows = [_update(run) for _ in range(2)]
    run.collector.close()
    assert rows[1]["success_rate"] == 0.0 and rows[1]["episode_length"] == 7.0
