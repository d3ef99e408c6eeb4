"""Runs whose policy reads episodes as conversations: resumed, and by two processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from groundling.cli.main import main
from groundling.training import trainer
from groundling.training.tracking import TIME_KEYS, read_metrics
from tests.launching import groundling
from tests.thorough import THOROUGH, thorough

_WORDS = [
    "model.path=starter-causal",
    "model.lora={r: 2}",
    "world.history=null",
    "world.num_envs=4",
    "world.num_steps=4",
    "~policy.args",
    "algorithm.args.minibatch_size=4",
    "algorithm.args.learning_rate_schedule=constant",
    "algorithm.args.learning_rate=1e-4",
    "algorithm.args.kl_coefficient=0.01",
    "world.entropy_floor=0",
    "training.steps=32",
    "device=cpu",
]


_THINKS = ", thought_ends: So, max_thought_tokens: 3"


def _words(run_dir: Path, policy: str) -> list[str]:
    thinks = _THINKS if policy == "action_generating" else ""
    args = f"{{prompt: conversation, system: Act., value_hidden_sizes: [8]{thinks}}}"
    return ["train", "demo", *_WORDS, f"policy.id={policy}", f"policy.args={args}", f"run_dir={run_dir}"]


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIME_KEYS} for row in read_metrics(run_dir)]


@pytest.mark.parametrize("policy", ["action_scoring", *thorough("action_generating", "action_writing")])
def test_a_stopped_run_resumes_to_the_last_bit(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(_words(whole, policy)) == 0
    update = trainer.Trainer.update

    def once(self: trainer.Trainer, *args: Any) -> Any:
        if self.counters.update == 1:  # in the middle of episodes
            raise KeyboardInterrupt
        return update(self, *args)

    monkeypatch.setattr(trainer.Trainer, "update", once)
    assert main(_words(stopped, policy)) != 0
    monkeypatch.setattr(trainer.Trainer, "update", update)
    assert main(_words(stopped, policy)) == 0
    assert _rows(stopped) == _rows(whole)
    assert all(row["kept_mib"] > 1 for row in _rows(whole))
    last = "checkpoints/000002"
    for name in ("adapter_model.safetensors", "value_head.safetensors"):
        one, other = load_file(whole / last / name), load_file(stopped / last / name)
        assert all(one[key].equal(other[key]) for key in one)


@THOROUGH
@pytest.mark.parametrize("policy", ["action_generating", *thorough("action_scoring")])
def test_two_processes_train_like_one(policy: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(_words(one, policy)) == 0
    ended = groundling(2, *_words(two, policy))
    assert [process.exit_code for process in ended] == [0, 0], ended
    for row, other in zip(_rows(one), _rows(two), strict=True):
        for name in ("step", "policy_loss", "value_loss", "entropy", "episodes", "kl_mean"):
            assert row[name] == pytest.approx(other[name], abs=1e-5), name


@THOROUGH
def test_adding_adapters_gives_no_warning() -> None:
    """bitsandbytes, which peft imports, would warn that it has no kernel from the hub."""
    code = (
        "from groundling.config.schema import ModelConfig; from groundling.training import build; "
        "build._make_language_model(ModelConfig(path='starter-causal', lora={'r': 2}), 1, 'cpu', None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
