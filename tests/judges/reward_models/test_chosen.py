"""Reward models trained on files of chosen and rejected texts."""

import json
import random
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.judges.reward_models import load_reward_model
from groundling.training.tracking import read_metrics
from tests.runs import error_of


def _increasing(path: Path, count: int) -> Path:
    """Write pairs in which the chosen text counts up."""
    rng, rows = random.Random(0), []
    for number in range(count):
        up = sorted(rng.sample(range(10), 5))
        rows.append({"prompt": f"count {number}", "chosen": _words(up), "rejected": _words(up[::-1])})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _words(digits: list[int]) -> str:
    return " " + " ".join(map(str, digits))


def test_a_reward_model_learns_from_pairs_and_rates_texts_with_their_prompts(tmp_path: Path) -> None:
    pairs = _increasing(tmp_path / "pairs.jsonl", 120)
    assert main(["distill", str(pairs), "--output", str(tmp_path / "reward"), "device=cpu", "epochs=8"]) == 0
    row = read_metrics(tmp_path / "reward")[-1]
    assert row["validation_accuracy"] >= 0.9 and row["validation_calibration_error"] < 0.2
    up, down = load_reward_model(tmp_path / "reward").rewards(
        [f"count 200\n{text}" for text in (" 1 2 5 8", " 8 5 2 1")]
    )
    assert up > down
    about = json.loads((tmp_path / "reward" / "reward_model.json").read_text())["about"]
    assert about["world"] == "writing" and about["learning_rate"] == 1e-3


@pytest.mark.parametrize(
    ("row", "words", "problem"),
    [
        ({"prompt": "a", "completion": "b", "label": True}, [], ":1 has only one labelled text"),
        (None, [], "has no rows: expected pairs of chosen and rejected texts"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, ["--preferences", "rules"], "which contains its own labels"),
    ],
)
def test_other_files_are_refused(
    row: dict[str, object] | None, words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("" if row is None else json.dumps(row) + "\n")
    assert problem in error_of(["distill", str(path), "--output", str(tmp_path / "reward"), *words], capsys)


def test_a_folder_needs_the_name_of_its_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--preferences is missing" in error_of(["distill", str(tmp_path), "--output", str(tmp_path / "r")], capsys)
