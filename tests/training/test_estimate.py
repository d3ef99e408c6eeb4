"""What a dry run must not do."""

import time
from pathlib import Path

import pytest

from groundling.cli import main
from tests.judges.chat_server import ChatServer, serving

_RUN = [
    "motif/score",
    "device=cpu",
    "env.num_envs=2",
    "env.args.max_episode_steps=12",
    "nethack.num_workers=0",
    "nethack.ahead=false",
    "nethack.online.model=table",
    "nethack.reward={normalize: false, threshold_quantile: 0}",
    "policy.args={hidden_size: 8, recurrence: 4}",
    "algorithm.args.minibatch_size=16",
    "training.steps=32",
    "training.steps_per_update=8",
]


def test_a_dry_run_asks_no_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "dry"
    with serving(ChatServer()) as server:
        judge = f"nethack.online.args={{model: m, base_url: '{server.url}'}}"
        arguments = ["train", *_RUN, f"run_dir={run_dir}", "nethack.online.judge=openai", judge]
        assert main([*arguments, "--dry-run"]) == 0
        time.sleep(0.5)  # in which a thread would have asked
        assert server.bodies == []
    assert "time" in capsys.readouterr().out
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("{model: m, base_url: nowhere}", "base_url 'nowhere'"),
        ("{model: m, timeout: abc}", "timeout must be of type float, got 'abc'"),
    ],
)
def test_a_dry_run_tells_what_is_wrong_with_the_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: str, said: str
) -> None:
    wrong = ["nethack.online.judge=openai", f"nethack.online.args={args}"]
    assert main(["train", *_RUN, f"run_dir={tmp_path / 'dry'}", *wrong, "--dry-run"]) != 0
    assert said in capsys.readouterr().err
