"""`groundling collect`: transitions of training episodes as a dataset."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from groundling.envs.make import make_text_env
from groundling.envs.seeds import is_held_out
from groundling.prompts import glam_prompt
from groundling.worlds.text import dataset

_GO_TO = ["world.env=BabyAI-GoToObj-v0", "evaluation.num_envs=3", "device=cpu"]


def _rows(folder: Path, split: str = "train") -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [row for p in sorted(folder.glob(f"data/{split}-*")) for row in pq.read_table(p).to_pylist()]


def _collect(folder: Path, *more: str, agent: str = "expert", episodes: int = 7) -> int:
    return main(["collect", agent, "--episodes", str(episodes), "--output", str(folder), *_GO_TO, *more])


def _error(capsys: pytest.CaptureFixture[str], folder: Path, *more: str, **options: Any) -> str:
    capsys.readouterr()
    assert _collect(folder, *more, **options) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


def test_datasets_opens_it_and_every_row_is_a_transition(tmp_path: Path) -> None:
    import datasets

    folder = tmp_path / "bot"
    assert _collect(folder, "--validation", "0.3") == 0
    opened = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    split_episodes = {split: sorted(set(rows["episode"])) for split, rows in opened.items()}
    assert split_episodes == {"train": [0, 1, 2, 4, 5], "validation": [3, 6]}
    assert opened["train"].column_names == dataset.schema().names
    episode = [row for row in opened["validation"] if row["episode"] == 6]
    env = make_text_env("BabyAI-GoToObj-v0")
    obs, info = env.reset(seed=episode[0]["seed"])
    assert not is_held_out(episode[0]["seed"])
    for i, row in enumerate(episode):
        assert row["step"] == i and row["goal"] == obs["mission"] and row["success"]
        assert row["descriptions"][-1] == info["descriptions"] and len(row["descriptions"]) == min(i + 1, 3)
        expected = glam_prompt(row["goal"], row["actions"], row["descriptions"], row["past_actions"])
        assert row["prompt"] == expected
        assert row["action"] == row["actions"][row["action_index"]] and row["log_prob"] is None
        obs, reward, terminated, truncated, info = env.step(row["action_index"])
        assert row["reward"] == pytest.approx(float(reward)) and row["done"] == (terminated or truncated)
    assert row["done"] and row["reward"] > 0


def test_it_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_EPISODES_PER_FILE", 4)
    assert _collect(tmp_path / "whole", episodes=10) == 0

    play, done = dataset.play_training_episodes, set()

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for one in play(*arguments):
            yield one
            done.add(one[0])
            if {4, 5} <= done:
                raise KeyboardInterrupt

    monkeypatch.setattr(dataset, "play_training_episodes", interrupted)
    assert _collect(tmp_path / "stopped", episodes=10) == 130
    monkeypatch.undo()
    before = _rows(tmp_path / "stopped")
    assert before[-1]["episode"] >= 5 and before[-1]["done"]
    assert _collect(tmp_path / "stopped", episodes=10) == 0
    assert _rows(tmp_path / "stopped")[: len(before)] == before
    assert _rows(tmp_path / "stopped") == _rows(tmp_path / "whole")
    files = sorted((tmp_path / "stopped" / "data").iterdir())
    assert _collect(tmp_path / "stopped", episodes=10) == 0
    assert sorted((tmp_path / "stopped" / "data").iterdir()) == files


def test_only_success_and_log_probs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _collect(tmp_path / "all", agent="random", episodes=20) == 0
    assert _collect(tmp_path / "good", "--only-success", agent="random", episodes=20) == 0
    rows = _rows(tmp_path / "all")
    assert {row["success"] for row in rows} == {True, False}
    assert _rows(tmp_path / "good") == [row for row in rows if row["success"]]
    assert all(row["log_prob"] == pytest.approx(-1.791759) for row in rows)
    assert "of 20 episodes" in " ".join(capsys.readouterr().out.split())


def test_a_process_that_died_at_its_first_file_does_not_block_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / f".collection.json.{'0' * 32}.partial").touch()
    assert _collect(tmp_path / "bot", episodes=1) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").mkdir()
    assert "other files" in _error(capsys, tmp_path / "mine")


def test_targets_that_cannot_be_collected_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _collect(tmp_path / "bot", episodes=2) == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert "agent='expert' (now 'random')" in _error(capsys, tmp_path / "bot", agent="random")
    assert "seed=1 (now 2)" in _error(capsys, tmp_path / "bot", "seed=2")
    assert "only_success" in _error(capsys, tmp_path / "bot", "--only-success")
    assert "other files" in _error(capsys, tmp_path)
    assert "is a file" in _error(capsys, tmp_path / "bot" / "README.md")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "collection.json").write_text("{")
    (tmp_path / "broken" / "data").symlink_to(tmp_path / "bot" / "data")
    assert "collection.json cannot be read" in _error(capsys, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken")
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for wrong in (["--episodes", "0"], ["--validation", "1"]):
        with pytest.raises(SystemExit):
            _collect(tmp_path / "new", *wrong)
    minigrid = ["world.env=MiniGrid-Empty-5x5-v0"]
    assert "the expert is BabyAI's bot" in _error(capsys, tmp_path / "new", *minigrid)
    assert _collect(tmp_path / "new", episodes=1) == 0  # a recording that never began does not reserve the folder
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "groundling[data]" in _error(capsys, tmp_path / "newer")
    assert not (tmp_path / "newer").exists()


def test_a_failing_write_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    def full(table: object, path: Path, **options: object) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(pq, "write_table", full)
        assert _collect(tmp_path / "bot", episodes=2) == 1
    assert not _rows(tmp_path / "bot")
    assert _collect(tmp_path / "bot", episodes=2) == 0
    assert {row["episode"] for row in _rows(tmp_path / "bot")} == {0, 1}
    assert json.loads((tmp_path / "bot" / "collection.json").read_text())["agent"] == "expert"


def test_no_link_of_a_received_dataset_is_followed(tmp_path: Path) -> None:
    assert _collect(tmp_path / "bot", episodes=2) == 0
    (tmp_path / "mine.txt").write_text("mine\n")
    link = tmp_path / "bot" / "data" / ".train-00000002-00000003.parquet.partial"
    link.symlink_to(tmp_path / "mine.txt")
    assert _collect(tmp_path / "bot", episodes=4) == 0
    assert (tmp_path / "mine.txt").read_text() == "mine\n"
    assert sorted(path.name for path in link.parent.iterdir()) == [
        *("train-00000000-00000001.parquet", "train-00000002-00000003.parquet")
    ]
    assert {row["episode"] for row in _rows(tmp_path / "bot")} == {0, 1, 2, 3}
