"""Files that are one result belong together wherever a kill comes: the one that completes them is written last."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from groundling.errors import GroundlingError
from groundling.evaluation import rating
from groundling.evaluation.evaluate import evaluate, read_evaluation
from groundling.evaluation.shown import read_run
from groundling.evaluation.target import find
from groundling.judges.preferences.labels import Labels
from groundling.judges.reward_models import load_reward_model, reward_models
from groundling.judges.reward_models.reward_model import Normalization
from groundling.training.trainer import train
from tests.faults.harness import digest
from tests.training.test_writing import _config


class _Killed(BaseException):
    pass


def _killed_at(rename: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Do ``work``, in which the rename of that number never happens; whether there are so many."""
    rename_to, done = Path.replace, []

    def count(self: Path, target: Path) -> Path:
        done.append(target)
        if len(done) > rename:
            raise _Killed
        return rename_to(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", count)
        try:
            work()
        except _Killed:
            return True
    return False


def _train(run_dir: Path, steps: int) -> Path:
    quick = ["algorithm.args.learning_rate=0.05", "evaluation.baselines=[]", "evaluation.metrics=[]"]
    train(_config(run_dir, *quick, f"training.steps={steps}"), Console(quiet=True))
    return run_dir


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writer's run of one update, evaluated; tests change copies."""
    run_dir = _train(tmp_path_factory.mktemp("completion") / "run", 24)
    _evaluate(run_dir)
    return run_dir


def _evaluate(run_dir: Path) -> str:
    """Evaluate the latest checkpoint; its texts."""
    evaluate(find(str(run_dir), [], pytest.fail), "test", 3)
    return (run_dir / "predictions" / "test-trained.jsonl").read_text()


def test_texts_are_those_of_the_checkpoint_that_the_figures_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was extended after an evaluation."""
    run_dir = _train(shutil.copytree(run, tmp_path / "run"), 48)
    texts = {"000001": (run_dir / "predictions" / "test-trained.jsonl").read_text()}
    whole = shutil.copytree(run_dir, tmp_path / "whole")
    texts["000002"] = _evaluate(whole)
    assert texts["000001"] != texts["000002"]
    survived = 0
    while _killed_at(survived, monkeypatch, lambda: _evaluate(run_dir)):
        mark = run_dir / "evaluation" / "test.json"
        shown = read_run(run_dir).texts
        if mark.exists():
            written = (run_dir / "predictions" / "test-trained.jsonl").read_text()
            assert written == texts[read_evaluation(mark)["checkpoint"]]
        else:
            assert not shown
        survived += 1
    assert survived == 3  # predictions, episodes, figures
    assert digest(run_dir) == digest(whole)


def test_figures_name_the_weights_by_their_digest(run: Path, tmp_path: Path) -> None:
    figures = read_evaluation(run / "evaluation" / "test.json")
    target = find(str(run), [], pytest.fail)
    assert target.checkpoint_identity().items() <= figures.items()
    other = shutil.copytree(run, tmp_path / "other")
    manifest = other / "checkpoints" / "000001" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["optimizer.safetensors"]["sha256"] = "0"  # of the same update, and trained otherwise
    manifest.write_text(json.dumps(content))
    changed = replace(target, checkpoint=other / "checkpoints" / "000001")
    assert not changed.checkpoint_identity().items() <= figures.items()


def test_figures_of_other_overrides_take_their_texts_along(run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(run, tmp_path / "run")
    first = (run_dir / "predictions" / "test-trained.jsonl").read_text()
    notes: list[str] = []
    evaluate(find(str(run_dir), ["world.num_tokens=3"], notes.append), "test", 3, warn=notes.append)
    kept = run_dir / "evaluation" / "replaced"
    assert {path.name for path in kept.iterdir()} == {
        "test-1.json",
        "test-1.csv",
        "test-trained-1-predictions.jsonl",
    }
    assert (kept / "test-trained-1-predictions.jsonl").read_text() == first
    assert (run_dir / "predictions" / "test-trained.jsonl").read_text() != first


def test_a_normalisation_belongs_to_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model(place: float) -> None:
        made = reward_models.create("table")
        made.normalization = Normalization(place, 1.0, (place,) * 19)
        made.save(tmp_path)

    model(1.0)
    for rename in range(2):
        assert _killed_at(rename, monkeypatch, lambda: model(2.0))
        if rename:  # the new weights are there
            with pytest.raises(GroundlingError):
                load_reward_model(tmp_path)


def test_probabilities_belong_to_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = Labels(tmp_path, "motif", 1)

    def write(code: int) -> None:
        labels.write_preferences("judge", np.array([code]), np.eye(3, dtype=np.float32)[[code]])

    write(0)
    for rename in range(2):
        assert _killed_at(rename, monkeypatch, lambda: write(1))
        if "judge" in labels.annotators():
            assert labels.preferences("judge")[0] == labels.soft_preferences("judge")[0].argmax()
    write(1)
    assert labels.preferences("judge").tolist() == [1]


def test_a_form_that_was_not_finished_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> Path:
        return rating._write(tmp_path / "form", "likert", "general", [])

    for rename in range(3):
        assert _killed_at(rename, monkeypatch, write)
    assert write().exists()
