"""Files that form one result remain consistent after a kill, because the file that completes them is written last."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundling.errors import GroundlingError
from groundling.evaluation.evaluate import evaluate, read_evaluation
from groundling.evaluation.target import Target, find
from groundling.judges import MessagePairs
from groundling.judges.reward_models import load_reward_model, reward_models
from groundling.judges.reward_models.reward_model import Normalization
from groundling.reports import rating
from groundling.reports.run_folder import read_run
from groundling.training import checkpoint
from groundling.training.checkpoint import write_settings
from groundling.worlds.episode import Episode, Played
from groundling.worlds.writing.world import WritingWorld
from tests.faults.harness import digest
from tests.training.test_writing import _config


class _Killed(BaseException):
    pass


def _killed_at(rename: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> bool:
    """Run ``work`` without its rename of this number; return True if it has so many renames."""
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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a text generation run with two checkpoints, which contain all that `evaluate` reads but the policy."""
    run_dir = tmp_path / "original"
    run_dir.mkdir()
    config = _config(run_dir, "evaluation.baselines=[]", "evaluation.metrics=[]")
    write_settings(run_dir, config.model_dump())
    for update in (1, 2):

        def write(folder: Path, update: int = update) -> None:
            (folder / "run.json").write_text("{}")
            (folder / "optimizer.safetensors").write_text(f"of update {update}")

        checkpoint.save(run_dir / "checkpoints", update, write, keep=2)
    return run_dir


@pytest.fixture(autouse=True)
def texts_name_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a policy that writes its checkpoint's digest and its number of tokens, without delay."""
    record: dict[str, Any] = {}

    def policy(target: Target, agent: str, **_: object) -> None:
        assert target.checkpoint is not None
        tokens = target.config.model_dump()["world"]["num_tokens"]
        record.update(text=checkpoint.digest_of(target.checkpoint), tokens=tokens)

    def measure(*arguments: object) -> Played:
        return Played([Episode({"reward": 1.0}, 0, {"sample": "0"}, prediction=dict(record))])

    monkeypatch.setattr(Target, "policy", policy)
    monkeypatch.setattr(WritingWorld, "play", lambda *arguments: iter(()))
    monkeypatch.setattr(WritingWorld, "measure", measure)


def _evaluate(run_dir: Path, latest: str = "000002", *overrides: str) -> str:
    """Evaluate a run with this latest checkpoint, and return its texts."""
    for newer in (run_dir / "checkpoints").glob("0*"):
        if newer.name > latest:
            shutil.rmtree(newer)
    evaluate(find(str(run_dir), overrides, pytest.fail), "test", 3, warn=lambda text: None)
    return (run_dir / "predictions" / "test-trained.jsonl").read_text()


def test_texts_and_figures_are_of_the_same_checkpoint(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a run that was extended after an evaluation."""
    run_dir, whole = (shutil.copytree(run, tmp_path / name) for name in ("run", "whole"))
    texts = {"000001": _evaluate(run_dir, "000001"), "000002": _evaluate(whole)}
    assert texts["000001"] != texts["000002"]
    shutil.copytree(run / "checkpoints" / "000002", run_dir / "checkpoints" / "000002")
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


def test_figures_identify_weights_by_digest(run: Path) -> None:
    _evaluate(run)
    figures, target = read_evaluation(run / "evaluation" / "test.json"), find(str(run), [], pytest.fail)
    assert target.checkpoint_identity().items() <= figures.items()
    manifest = run / "checkpoints" / "000002" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["optimizer.safetensors"]["sha256"] = "0"  # the same update with different training
    manifest.write_text(json.dumps(content))
    assert not target.checkpoint_identity().items() <= figures.items()


def test_replaced_figures_keep_their_texts(run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(run, tmp_path / "run")
    first = _evaluate(run_dir)
    assert _evaluate(run_dir, "000002", "world.num_tokens=3") != first
    kept = run_dir / "evaluation" / "replaced"
    assert {path.name for path in kept.iterdir()} == {"test-1.json", "test-1.csv", "test-trained-1-predictions.jsonl"}
    assert (kept / "test-trained-1-predictions.jsonl").read_text() == first


def test_a_normalisation_belongs_to_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model(place: float) -> None:
        made = reward_models.create("table")
        made.normalization = Normalization(place, 1.0, (place,) * 19)
        made.save(tmp_path)

    model(1.0)
    for rename in range(2):
        assert _killed_at(rename, monkeypatch, lambda: model(2.0))
        if rename:  # the new weights exist
            with pytest.raises(GroundlingError):
                load_reward_model(tmp_path)


def test_probabilities_belong_to_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = MessagePairs.create(tmp_path / "pairs", {"message": np.zeros((1, 2, 1, 256), np.uint8)})

    def write(code: int) -> None:
        pairs.write_preferences("judge", np.array([code]), np.eye(3, dtype=np.float32)[[code]])

    write(0)
    for rename in range(2):
        assert _killed_at(rename, monkeypatch, lambda: write(1))
        if "judge" in pairs.annotators():
            soft = pairs.soft_preferences("judge")
            assert soft is not None and pairs.preferences("judge")[0] == soft[0].argmax()
    write(1)
    assert pairs.preferences("judge").tolist() == [1]


def test_an_unfinished_form_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = tmp_path / "texts.jsonl"
    predictions.write_text('{"prompt": "p", "generation": "g"}\n')

    def write() -> Path:
        return rating.write_form("likert", {"system": predictions}, tmp_path / "form", num_samples=1)

    for rename in range(3):
        assert _killed_at(rename, monkeypatch, write)
    assert write().exists()
