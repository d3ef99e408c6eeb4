"""Probabilities in fixed situations, for each update."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling.config.schema import Config, TrainingConfig
from groundling.envs.babyai_text import ACTIONS
from groundling.errors import ConfigError, RunError
from groundling.policies import RandomPolicy
from groundling.registry import ComponentConfig
from groundling.training.train import train
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.text.frames import ProbeLog, load_probes, observations, read_probes, right_actions
from tests.building import policy_of
from tests.runs import error_of, figures


def _world(probes: int | None = 1) -> TextConfig:
    return TextConfig(env="BabyAI-GoToRedBallNoDists-v0", num_envs=4, history=2, num_steps=4, probes=probes)


def _config(run_dir: Path, probes: int | None = 1, steps: int = 48) -> Config:
    return Config(
        name="probed",
        run_dir=str(run_dir),
        device="cpu",
        world=_world(probes),
        policy=ComponentConfig(id="action_scoring", args={"value_hidden_sizes": [8]}),
        algorithm=ComponentConfig(id="ppo", args={"learning_rate": 1e-3, "minibatch_size": 8, "epochs": 1}),
        training=TrainingConfig(steps=steps),
        evaluation=TextEvaluation(),
    )


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three updates with the first set, which tests do not change."""
    run_dir = tmp_path_factory.mktemp("probed")
    assert train(_config(run_dir), Console(quiet=True))
    return run_dir


def test_a_policy_sees_no_more_than_its_history() -> None:
    actions = ACTIONS["english"]
    for history in (1, 2, 3):
        for seen, probe in zip(observations(load_probes()[2], actions, history), load_probes()[2], strict=True):
            assert seen.descriptions == probe.descriptions[-history:]
            assert len(seen.past_actions) == len(seen.descriptions) - 1
            assert seen.past_actions == probe.past_actions[-history + 1 :][: history - 1] or history == 1


def test_probes_are_logged_at_each_update_and_change_nothing(probed: Path, tmp_path: Path) -> None:
    without = tmp_path / "without"
    assert train(_config(without, probes=None), Console(quiet=True))
    rows = read_probes(probed)
    assert [(row["update"], row["step"]) for row in rows] == [(0, 0), (1, 16), (2, 32), (3, 48)]
    for row in rows:
        assert list(row["probabilities"]) == [probe.title for probe in load_probes()[1]]
        for distribution in row["probabilities"].values():
            assert list(distribution) == list(ACTIONS["english"]) and sum(distribution.values()) == pytest.approx(
                1, abs=1e-4
            )
    began = policy_of(_config(tmp_path)).outputs(observations(load_probes()[1], ACTIONS["english"], 2)).log_probs
    zero_shot = torch.tensor([list(distribution.values()) for distribution in rows[0]["probabilities"].values()])
    torch.testing.assert_close(began.exp(), zero_shot, atol=1e-5, rtol=0)
    assert rows[0]["probabilities"] != rows[1]["probabilities"] != rows[3]["probabilities"]
    assert not (without / "probes.jsonl").exists() and not read_probes(without)

    assert figures(probed) == figures(without)
    last = sorted((probed / "checkpoints").iterdir())[-1]
    policy = policy_of(_config(tmp_path), last)
    log_probs = policy.outputs(observations(load_probes()[1], ACTIONS["english"], 2)).log_probs
    assert log_probs is not None
    probabilities = torch.tensor([list(distribution.values()) for distribution in rows[-1]["probabilities"].values()])
    torch.testing.assert_close(log_probs.exp(), probabilities, atol=1e-5, rtol=0)


def test_a_resumed_run_drops_rows_it_computes_again(probed: Path, tmp_path: Path) -> None:
    shutil.copytree(probed, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "probes.jsonl"
    whole = path.read_text()
    path.write_text(whole + json.dumps({"update": 4, "step": 64, "probabilities": {}}) + '\n{"update": 5, "st')
    assert train(_config(tmp_path), Console(quiet=True))  # there is nothing left to do
    assert path.read_text() == whole
    assert train(_config(tmp_path, probes=2, steps=64), Console(quiet=True))
    rows = read_probes(tmp_path)
    assert [row["update"] for row in rows] == [0, 1, 2, 3, 4]
    assert list(rows[4]["probabilities"]) == [probe.title for probe in load_probes()[2]]
    path.write_text("3\n" + whole)
    with pytest.raises(RunError, match=r"line 1 of .*probes\.jsonl"):
        read_probes(tmp_path)


def test_invalid_probes_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, message in (
        (["world.probes=3"], "must be one of 1, 2, both, got 3"),
        (["world.probes=1", "world.language=french"], "English"),
    ):
        words = ["train", "demo-easy", f"run_dir={tmp_path / 'run'}", "device=cpu", *wrong]
        assert message in error_of(words, capsys)
    config = _config(tmp_path)
    config.policy = ComponentConfig(id="symbolic", args={"channels": 8, "hidden_size": 8, "recurrence": 2})
    config.world.history = 3
    with pytest.raises(ConfigError, match=r"world\.probes=1 does nothing"):
        train(config, Console(quiet=True))


def test_other_actions_have_their_own_names(tmp_path: Path) -> None:
    config = _world()
    config.actions = ["left", "right", "ahead"]
    log = ProbeLog(config, RandomPolicy(), tmp_path, 0)
    log.log({"update": 1, "step": 16})
    ProbeLog(config, RandomPolicy(), tmp_path, 0)  # killed before its first checkpoint, and restarted
    assert [row["update"] for row in read_probes(tmp_path)] == [0]
    assert right_actions(config)["ball ahead"] == ["ahead"] and not right_actions(config)["sequence, first half"]
    probabilities = read_probes(tmp_path)[0]["probabilities"]["ball ahead"]
    assert probabilities == pytest.approx({"left": 1 / 3, "right": 1 / 3, "ahead": 1 / 3}, abs=1e-6)
