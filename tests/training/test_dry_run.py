"""Dry runs: their figures, and what they must not do."""

import time
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.errors import GroundlingError
from groundling.training.build import dry_run
from tests.judges.asking.chat_server import ChatServer, serving

_RUN = [
    *("motif/score", "device=cpu", "world.num_envs=2", "world.args.max_episode_steps=12"),
    *("world.num_workers=0", "world.ahead=false", "reward.reward_model.args.online.model=table"),
    "reward.reward_model.args={normalize: false, threshold_quantile: 0}",
    *("policy.args={hidden_size: 8, recurrence: 4}", "algorithm.args.minibatch_size=16"),
    *("training.steps=32", "world.num_steps=8"),
]


def test_a_dry_run_asks_no_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "dry"
    with serving(ChatServer()) as server:
        judge = f"reward.reward_model.args.online.args={{model: m, base_url: '{server.url}'}}"
        arguments = ["train", *_RUN, f"run_dir={run_dir}", "reward.reward_model.args.online.judge=openai", judge]
        assert main([*arguments, "--dry-run"]) == 0
        time.sleep(0.5)  # a thread would have sent requests in this time
        assert server.bodies == []
    assert "time" in capsys.readouterr().out
    assert not run_dir.exists()


def test_a_dry_run_shows_the_prompt_of_a_policy_that_writes_turns() -> None:
    words = ["policy.id=action_generating", "~policy.args", "policy.args={prompt: brief}", "world.num_envs=2"]
    small = ["algorithm.args.minibatch_size=4", "algorithm.args.micro_batch_size=null", "device=cpu"]
    assert "Goal:" in str(dry_run(compose("demo-easy", [*words, *small])).prompt)


def test_a_dry_run_reports_missing_metrics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(module: str) -> None:
        raise GroundlingError(f"{module} is not installed")

    few = ["device=cpu", "world.num_texts=2", "evaluation.metrics=[{id: rouge}]"]
    words = ["train", "rl4lms/increasing_numbers_ppo", *few, "--dry-run"]
    monkeypatch.setattr("groundling.metrics.metric.check_library", missing)
    assert main([*words, "evaluation.every=null"]) == 0
    assert main([*words, "evaluation.every=1"]) == 1
    assert "rouge_score is not installed" in capsys.readouterr().err
