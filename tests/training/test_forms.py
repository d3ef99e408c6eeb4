"""Runs with several forms of the prompt: resumed, and by two processes."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from groundling.cli.main import main
from groundling.training import trainer
from groundling.training.tracking import TIME_KEYS, read_metrics
from tests.launching import groundling
from tests.thorough import THOROUGH

_WORDS = [
    "model.path=starter-causal",
    "world.num_envs=2",
    "world.num_steps=4",
    "world.entropy_floor=0",
    "policy.args.prompt=[glam,brief,tagged]",
    "algorithm.args.minibatch_size=4",
    "algorithm.args.contrast_coefficient=0.5",
    "algorithm.args.contrast_prompts=[glam,brief,tagged,narrative]",
    "training.steps=16",
    "device=cpu",
]


def _words(run_dir: Path) -> list[str]:
    return ["train", "demo-easy", *_WORDS, f"run_dir={run_dir}"]


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIME_KEYS} for row in read_metrics(run_dir)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("forms") / "whole"
    assert main(_words(run_dir)) == 0
    return run_dir


@THOROUGH
def test_a_stopped_run_resumes_to_the_last_bit(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    update = trainer.Trainer.update

    def once(self: trainer.Trainer, *args: Any) -> Any:
        if self.counters.update == 1:  # in the middle of episodes
            raise KeyboardInterrupt
        return update(self, *args)

    monkeypatch.setattr(trainer.Trainer, "update", once)
    assert main(_words(stopped)) != 0
    monkeypatch.setattr(trainer.Trainer, "update", update)
    assert main(_words(stopped)) == 0
    assert _rows(stopped) == _rows(whole)
    last = "checkpoints/000002/model.safetensors"
    one, other = load_file(whole / last), load_file(stopped / last)
    assert all(one[key].equal(other[key]) for key in one)


@THOROUGH
def test_two_processes_train_like_one(whole: Path, tmp_path: Path) -> None:
    two = tmp_path / "two"
    ended = groundling(2, *_words(two))
    assert [process.exit_code for process in ended] == [0, 0], ended
    for row, other_row in zip(_rows(whole), _rows(two), strict=True):
        for name in ("step", "policy_loss", "contrast", "entropy", "episodes"):
            assert row[name] == pytest.approx(other_row[name], abs=1e-5), name
