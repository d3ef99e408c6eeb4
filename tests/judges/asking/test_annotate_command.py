"""`groundling annotate`."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from groundling.cli.command import duration
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.judges import MessagePairs, open_pairs
from tests.judges.asking.annotating import ROWS, command, dataset, longer
from tests.judges.asking.chat_server import ChatServer, serving


def test_labels_are_written_under_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("You kill the newt!", "It's a wall."), ("It's a wall.", "You kill the newt!"), ("", "")]
    folder = dataset(tmp_path / "pairs", rows).folder
    assert command(folder, "--dry-run") == 0
    assert "1 requests here" in capsys.readouterr().out
    assert open_pairs(folder).annotators() == []
    assert command(folder) == 0
    assert "labels      first 1 · second 1 · tie 1 · unknown 0 (of 3)" in capsys.readouterr().out
    assert open_pairs(folder).preferences("rules_msg_defaultgoal_default").tolist() == [0, 1, 2]
    assert command(folder, "--goal", "gold", "--prompt", "reworded", "--both-orders") == 0
    assert "both orders 0.0%" in capsys.readouterr().out
    assert open_pairs(folder).preferences("rules_msg_gold_reworded").tolist() == [2, 2, 2]
    path = tmp_path / "question.txt"
    path.write_text("Which is better? {goal}")
    assert command(folder, "--question", path, "--name", "own", "--store", tmp_path / "store") == 0
    assert (tmp_path / "store" / "answers").is_dir()
    for chunk in "01":
        assert command(folder, "--name", "chunked", "--chunks", "2", "--chunk", chunk) == 0
    assert open_pairs(folder).preferences("chunked").tolist() == [0, 1, 2]


def test_the_example_of_a_judge_annotates(tmp_path: Path) -> None:
    importlib.import_module("examples.own_judge")
    rows = [("You see here a rock.", "You, you, you."), ("a b", "c d"), ("a b c", "a b")]
    folder = dataset(tmp_path / "pairs", rows).folder
    assert command(folder, "--judge", "variety", "least=2", "--prompt", "reworded") == 0
    assert open_pairs(folder).preferences("variety_msg_defaultgoal_reworded").tolist() == [0, 2, 2]


def test_failed_requests_are_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dataset(tmp_path / "pairs", [("a", "bb"), ("ccc", "")]).folder
    with serving(ChatServer(treat=lambda number: "500" if number == 1 else "ok")) as server:
        words = ["--judge", "openai", "model=org/some.model", f"base_url={server.url}", "concurrency=1"]
        words += ["max_retries=0", "prompt_price=1.5", "completion_price=2", "extra.top_k=50", "extra.top_p=null"]
        assert command(folder, *words) == 1
        assert "1 requests got no answer (the first: HTTP 500" in capsys.readouterr().err
        assert server.bodies[0]["top_k"] == 50 and "top_p" not in server.bodies[0]
        assert server.bodies[0]["model"] == "org/some.model"
        assert command(folder, *words) == 0
        out = capsys.readouterr().out
        assert "tokens      200 read, 14 written in all" in out and "cost        0.00 in all" in out
        assert len(server.bodies) == 3
    assert open_pairs(folder).preferences("openai_some-model_msg_defaultgoal_default").tolist() == [1, 0]


def test_without_any_answer_the_name_stays_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dataset(tmp_path / "pairs").folder
    with serving(ChatServer(treat=lambda number: "500")) as server:
        words = [folder, "--name", "mine", "--judge", "openai", "model=m", f"base_url={server.url}"]
        assert command(*words, "max_retries=0", "temperature=0.3") == 1
        assert "no labels were written: there is no verdict yet" in capsys.readouterr().out
        assert not (folder / "annotations").exists() and open_pairs(folder).annotators() == []
        server.treat = lambda number: "ok"
        assert command(*words, "max_retries=0", "temperature=0.2") == 0
    assert open_pairs(folder).preferences("mine").tolist() == longer(ROWS)


def test_a_judge_without_verdicts_is_stopped_within_50_requests(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "pairs", [(f"a{n}", "b" * (n % 9)) for n in range(3000)]).folder
    with serving(ChatServer(write=lambda body: "It \x1b[1mdepends\n on taste.")) as server:
        words = ["--name", "mine", "--judge", "openai", "model=m", f"base_url={server.url}", "concurrency=8"]
        with pytest.raises(RunError, match="20 answers in a row have no verdict in the form 'line'") as left:
            command(folder, *words)
        assert "the last reply: 'It [1mdepends on taste.'" in str(left.value)
        assert len(server.bodies) <= 50 + 8
    assert open_pairs(folder).annotators() == []


_OPENAI = ["--judge", "openai", "model=m"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--judge", "ruels"], "did you mean 'rules'"),
        (["--judge", "rules", "tbl=3"], "unknown argument of judge 'rules' 'tbl'"),
        (["--judge", "openai"], "model"),
        (["--judge", "openai", "sk-123456789012345678901234567890"], "expected key=value"),
        ([*_OPENAI, "api_key=sk-1234567890"], "unknown argument .* 'api_key'"),
        ([*_OPENAI, "answer=words"], "answer must be one of line, .*, got 'words'"),
        (["--judge", "openai", "model=123"], "--judge openai: model must be text, got 123"),
        ([*_OPENAI, "concurrency=0"], "concurrency must be at least 1, got 0"),
        (["--judge", "transformers", "model=m", "top_p=2"], "top_p must be at most 1, got 2"),
        ([*_OPENAI, "temperature=hot"], "temperature must be a number, got 'hot'"),
        ([*_OPENAI, "soft_labels=maybe"], "soft_labels must be true or false"),
        ([*_OPENAI, "prompt_price=abc"], "prompt_price must be a number"),
        ([*_OPENAI, "extra=5"], "extra must be a mapping, .*, got 5"),
        (["--judge", "openai", "model=["], "cannot be read as YAML"),
        (["--judge", "random", "seed=x"], "--judge random: seed must be a whole number, got 'x'"),
        (["--judge", "rules", "rules=5"], "rules must be a list, .*, got 5"),
        (["--goal", "goal"], "unknown goal"),
        (["--chunks", "2"], "needs --chunk I"),
        (["--chunks", "2", "--chunk", "2"], "numbered from 0 to 1"),
        (["--judge", "score"], "unknown info 'score'"),
        (["--blstats"], "no blstats"),
    ],
)
def test_wrong_words_get_a_message(tmp_path: Path, words: list[str], message: str) -> None:
    folder = dataset(tmp_path / "pairs", [("a", "bb")]).folder
    with pytest.raises(GroundlingError, match=message) as error:
        command(folder, *words)
    assert "123456789012" not in str(error.value), "a possible key is not repeated"
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == ["data", "info"], "nothing is written"


def test_judges_by_figures(tmp_path: Path) -> None:
    message = np.zeros((4, 2, 2, 256), np.uint8)
    rewards = np.array([[[1, 2], [0, 2]], [[0, 0], [1, 0]], [[1, 1], [2, 0]], [[0, 3], [3, 1]]], np.float32)
    score = {"score": np.array([[5, 5], [7, 6], [0, 1], [2, 3]])}
    pairs = MessagePairs.create(tmp_path / "pairs", {"message": message, "rewards": rewards}, score)
    for judge in ("score", "return", "random"):
        assert command(pairs.folder, "--judge", judge) == 0
    assert pairs.preferences("score").tolist() == [2, 0, 1, 1]
    assert pairs.preferences("return").tolist() == [0, 1, 2, 1]
    assert set(pairs.preferences("random").tolist()) <= {0, 1}
    assert command(pairs.folder, "--judge", "random", "seed=3", "--name", "other") == 0
    with pytest.raises(ConfigError, match="by another judge or program"):
        command(pairs.folder, "--judge", "random", "seed=4", "--name", "other")
    assert not (tmp_path / "pairs" / "answers").exists()


def test_durations_have_fitting_units() -> None:
    durations = [duration(seconds) for seconds in (0.4, 119, 120, 7199, 7200, 9000)]
    assert durations == ["0 s", "119 s", "2 min", "120 min", "2.0 h", "2.5 h"]
