"""A trained policy as a folder of its own, and on the hub."""

from pathlib import Path
from typing import ClassVar

import pytest

from groundling.cli import main
from groundling.errors import RunError
from groundling.evaluation.publish import upload
from groundling.lm import LanguageModel
from groundling.training.tracking import read_metrics


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    small = ["world.num_texts=2", "world.num_tokens=3", "training.steps=7", "evaluation.episodes=2"]
    small += ["training.checkpoint_every=1", "training.keep_checkpoints=9"]
    words = ["rl4lms/increasing_numbers_ppo", *small, f"run_dir={folder}", "device=cpu"]
    assert main(["train", *words]) == 0 and main(["evaluate", str(folder)]) == 0
    return folder


def test_a_published_policy_loads_and_says_what_it_is(run_dir: Path, tmp_path: Path) -> None:
    assert main(["publish", str(run_dir), "--output", str(tmp_path / "out")]) == 0
    lm = LanguageModel.from_pretrained(tmp_path / "out")
    assert lm.score(["1 2"], ["3"])[0].isfinite().all()
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: groundling\nbase_model: starter-causal\n")
    assert "| reward |" in card and "zero-shot" in card and "increasing_numbers" in card
    assert not (tmp_path / "out" / "optimizer.safetensors").exists()


def test_the_card_is_about_the_checkpoint_that_is_published(run_dir: Path, tmp_path: Path) -> None:
    first = run_dir / "checkpoints" / "000001"
    rows = read_metrics(run_dir)
    assert len(rows) > 1 and main(["publish", str(first), "--output", str(tmp_path / "first")]) == 0
    card = (tmp_path / "first" / "README.md").read_text()
    assert f"{rows[0]['step']} steps, seed 1, checkpoint 000001" in card
    assert "This checkpoint has not been evaluated." in card and "| reward |" not in card
    assert main(["evaluate", str(first)]) == 0
    assert main(["publish", str(first), "--output", str(tmp_path / "again")]) == 0
    card = (tmp_path / "again" / "README.md").read_text()
    assert "## test-000001" in card and "## test\n" not in card and "| reward |" in card


class _Hub:
    told: ClassVar[list[tuple[str, object]]] = []

    def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> None:
        if repository == "away/from-here":
            raise ConnectionError("no route")
        self.told.append((repository, private))

    def upload_folder(self, *, repo_id: str, folder_path: Path) -> str:
        self.told.append((repo_id, sorted(p.name for p in folder_path.iterdir())))
        return f"https://hub/{repo_id}"


def test_it_is_uploaded_whole_or_the_folder_stays(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", _Hub)
    words = ["publish", str(run_dir), "--output"]
    assert main([*words, str(tmp_path / "a"), "--upload", "me/numbers", "--private"]) == 0
    assert _Hub.told[0] == ("me/numbers", True) and "README.md" in str(_Hub.told[1])
    assert "https://hub/me/numbers" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "b"), "--upload", "away/from-here"]) == 1
    assert "no route; the folder stays" in capsys.readouterr().err and (tmp_path / "b" / "README.md").exists()


def test_a_hub_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hub's own client, whose errors are no OSErrors."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(RunError, match=r"could not upload .* to me/numbers: .*refused.*; the folder stays"):
        upload(tmp_path, "me/numbers", private=True)


def test_what_cannot_be_published_is_told(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    assert main(["publish", str(run_dir), "--output", str(tmp_path / "full")]) == 1
    assert "name another folder" in capsys.readouterr().err
    assert main(["publish", "demo-easy", "--output", str(tmp_path / "out")]) == 1
    assert "no checkpoint" in capsys.readouterr().err
    assert main(["publish", str(run_dir), "--output", str(tmp_path / "out"), "--private"]) == 1
    assert "--upload" in capsys.readouterr().err
