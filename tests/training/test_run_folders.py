"""Folders that contain runs are not used for a run or for results."""

from pathlib import Path

import pytest

import groundling as gl
from groundling.cli.main import main
from tests.lm.tiny import tiny_config, tiny_model
from tests.runs import error_of
from tests.studies import STUDY
from tests.test_finetune import ROWS, digits

_WORDS = ["world.env=test/Corridor-v0", "~world.args", "world.actions=[left, right, wait]", "world.num_envs=2"]
_WORDS += ["world.num_steps=2", "training.steps=4", "~policy.args", "policy.id=test-table", "device=cpu"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder that contains a run."""
    run = tmp_path / "runs" / "demo-seed1"
    assert main(["train", "demo-easy", *_WORDS, f"run_dir={run}"]) == 0
    return run.parent


@pytest.mark.parametrize("depth", [0, 1])
def test_a_folder_that_contains_runs_is_not_made_a_run(
    runs: Path, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = [runs, runs.parent][depth]
    before = sorted(runs.parent.rglob("*"))
    message = f"{folder} contains runs ({'runs/' * depth}demo-seed1): set run_dir to a new folder, {folder}/NAME"
    assert message in error_of(["train", "demo-easy", *_WORDS, f"run_dir={folder}"], capsys)
    with pytest.raises(gl.ConfigError, match="contains runs"):
        gl.finetune("starter-causal", digits, ROWS, run_dir=folder)
    with pytest.raises(gl.ConfigError, match="contains runs"):
        model = tiny_model(tiny_config("llama"))
        gl.train(world="BabyAI-GoToRedBall-v0", model=model, tokenizer="starter-causal", run_dir=folder)
    assert sorted(runs.parent.rglob("*")) == before
    assert main(["train", "demo-easy", *_WORDS, f"run_dir={runs}/demo-seed1"]) == 0  # the run itself resumes


def test_results_of_a_study_do_not_replace_other_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = runs.parent / "tiny.yaml"
    study.write_text(STUDY)
    error = error_of(["study", str(study), "--runs", str(runs), "--output", str(runs)], capsys)
    assert f"{runs} contains no results of a study: choose a new folder (--output)" in error
    assert sorted(path.name for path in runs.iterdir()) == ["demo-seed1"]
