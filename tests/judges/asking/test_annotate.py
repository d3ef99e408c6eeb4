"""Annotation: the questions about a dataset, the labels from their answers, and `groundling annotate`."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundling.cli.command import duration
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.judges import Annotation, Judge, MessagePairs, Preference, Question, Reply, Request, open_pairs
from groundling.judges.asking.judge import judges
from tests.judges.asking.annotating import QUESTION, ROWS, LongerJudge, annotate, command, dataset, longer
from tests.judges.asking.chat_server import ChatServer, serving

GOLD = Question("gold", world="nethack")
judges.register("test-function")(lambda first, second: len(first) > len(second))  # type: ignore[arg-type,return-value]
judges.register("test-number")(lambda: 1)  # type: ignore[arg-type,return-value]


def test_each_distinct_unordered_pair_is_asked_once(tmp_path: Path) -> None:
    pairs, judge = dataset(tmp_path / "pairs"), LongerJudge()
    estimate = Annotation(pairs, judge, QUESTION).estimate()
    assert (estimate.rows, estimate.identical, estimate.distinct) == (8, 2, 3)
    assert (estimate.requests, estimate.known, estimate.cost) == (3, 0, None)
    assert not (tmp_path / "pairs" / "answers").exists(), "an estimate writes nothing"
    summary = annotate(pairs, judge)
    assert pairs.preferences("mine").tolist() == longer(ROWS)
    assert pairs.soft_preferences("mine") is None
    assert len(judge.asked) == 3 == len({frozenset(pair) for pair in judge.asked})
    assert summary.labels == {"first": 3, "second": 3, "tie": 2, "unknown": 0}
    assert (summary.prompt_tokens, summary.completion_tokens, summary.asked) == (30, 6, 3)
    # A second dataset with the same store asks only the new questions.
    more, store = dataset(tmp_path / "more", [("bb", "a"), ("dddd", "a")]), pairs.folder / "answers"
    annotate(more, judge, folder=store)
    assert more.preferences("mine").tolist() == [0, 0] and len(judge.asked) == 4
    after = Annotation(more, judge, QUESTION, folder=store).estimate()
    assert (after.requests, after.known) == (0, 2)


def test_estimates_use_the_known_answers(tmp_path: Path) -> None:
    pairs, judge = dataset(tmp_path / "pairs", [(f"a{n}", "b") for n in range(40)]), LongerJudge()
    judge.cost = lambda prompt, completion: prompt * 2 + completion * 3  # type: ignore[method-assign]
    annotation = Annotation(pairs, judge, QUESTION)
    first = annotation.estimate()
    length = sum(len(turn["content"]) for turn in QUESTION.conversation("a", "b", "line"))
    assert first.prompt_tokens == pytest.approx(40 * length / 4, rel=0.01) and first.seconds is None
    annotate(pairs, judge, chunk=0, chunks=2)
    count = annotation.estimate(1, 2).requests
    assert 8 < count < 32 and len(judge.asked) == 40 - count
    estimate = annotation.estimate()
    assert (estimate.requests, estimate.prompt_tokens) == (count, 10 * count)
    assert estimate.cost == pytest.approx(10 * count * 2 + 2 * count * 3)


class Hesitant(LongerJudge):
    """Returns no verdict before a conversation has ``certain`` messages."""

    certain = 99

    def answer(self, request: Request) -> Reply:
        self.asked.append(("", str(len(request.conversation))))
        sure = len(request.conversation) >= self.certain
        return Reply("Verdict: 1") if sure else Reply("It depends.", prompt_tokens=1)


def test_a_reply_without_verdict_is_asked_for_once_more_then_invalid(tmp_path: Path) -> None:
    pairs, judge = dataset(tmp_path / "pairs"), Hesitant()
    summary = annotate(pairs, judge)
    assert [messages for _, messages in judge.asked] == ["2", "4"] * 3
    assert (summary.answered, summary.invalid, summary.failed) == (3, 3, 0)
    assert not summary.written and pairs.annotators() == []
    assert summary.invalid_reply == "It depends."
    judge.certain = 4
    summary = annotate(pairs, judge)  # invalid answers are queried again
    assert len(judge.asked) == 12 and summary.invalid == 0
    assert summary.prompt_tokens == 6 + 3, "every request is counted"
    lines = [json.loads(line) for path in tmp_path.rglob("*.jsonl") for line in path.open()]
    assert [line["replies"][0] for line in lines] == ["It depends."] * 6
    assert sum(line["label"] == "invalid" for line in lines) == 3


def test_tokens_of_requests_before_a_failure_are_counted(tmp_path: Path) -> None:
    class Leaving(LongerJudge):
        here = False

        def answer(self, request: Request) -> Reply:
            if self.here:
                return super().answer(request)
            if len(request.conversation) == 2:
                return Reply("It depends.", prompt_tokens=5, completion_tokens=3)
            return Reply("", failure="gone")

    pairs, judge = dataset(tmp_path / "pairs"), Leaving()
    judge.cost = lambda prompt, completion: prompt + 100 * completion  # type: ignore[method-assign]
    first = annotate(pairs, judge)
    assert (first.asked, first.failed, first.first_failure) == (0, 3, "gone")
    assert (first.prompt_tokens, first.completion_tokens, first.cost) == (15, 9, 915)
    judge.here = True
    second = annotate(pairs, judge)
    assert (second.asked, second.failed, second.invalid) == (3, 0, 0)
    assert (second.prompt_tokens, second.completion_tokens) == (15 + 30, 9 + 6)
    assert pairs.preferences("mine").tolist() == longer(ROWS)


def test_both_orders_show_a_position_bias(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs")
    fair = annotate(pairs, LongerJudge(), "fair", both_orders=True)
    assert (fair.answered, fair.first_rate, fair.inconsistent) == (6, 0.5, 0.0)
    assert pairs.preferences("fair").tolist() == longer(ROWS)
    biased, store = LongerJudge(bias="1"), tmp_path / "store"
    both = annotate(pairs, biased, "biased", folder=store, both_orders=True)
    assert len(biased.asked) == 6 == len(set(biased.asked))
    assert (both.first_rate, both.inconsistent) == (1.0, 1.0)
    assert pairs.preferences("biased").tolist() == [2] * 8, "two verdicts that differ are a tie"
    with pytest.raises(ConfigError, match="change --name"):
        annotate(pairs, biased, "biased", folder=store)
    assert annotate(pairs, biased, "single", folder=store).asked == 0, "one of both orders is known"


def test_a_fair_coin_decides_which_caption_is_shown_first(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs", [(f"a{n}", "b" * (n % 3 + 1)) for n in range(600)])
    judge = LongerJudge(bias="1")
    annotate(pairs, judge)
    assert 0.42 < np.mean(pairs.preferences("mine") == Preference.FIRST) < 0.58  # 0.5 ± 4 standard errors


def test_soft_labels_are_averaged_over_orders_and_follow_the_rows(tmp_path: Path) -> None:
    class Soft(LongerJudge):
        def answer(self, request: Request) -> Reply:
            reply = super().answer(request)
            sure = (0.7, 0.2, 0.1) if reply.text.endswith("1") else (0.4, 0.5, 0.1)
            return Reply(reply.text, probabilities=sure)

    pairs = dataset(tmp_path / "pairs", [("a", "bb"), ("bb", "a"), ("a", "a")])
    annotate(pairs, Soft(), "soft", both_orders=True)
    # With the longer caption first: 0.7 for it, 0.2 against; with it second: 0.5 for it, 0.4 against.
    soft = pairs.soft_preferences("soft")
    np.testing.assert_allclose(soft, [[0.3, 0.6, 0.1], [0.6, 0.3, 0.1], [0, 0, 1]], rtol=1e-6)
    assert soft is not None and soft.dtype == np.float32


def test_labels_of_another_question_are_not_overwritten(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs")
    pairs.write_preferences("theirs", np.zeros(8, np.int8))
    for question in (QUESTION, GOLD):
        with pytest.raises(ConfigError, match="for a different question"):
            annotate(pairs, LongerJudge(), "theirs", question)
    annotate(pairs, LongerJudge(), "ours")
    with pytest.raises(ConfigError, match="for a different question"):
        annotate(pairs, LongerJudge(), "ours", GOLD)
    with pytest.raises(ConfigError, match="numbered from 0 to 1"):
        annotate(pairs, LongerJudge(), "ours", chunk=2, chunks=2)


def test_answers_before_an_error_are_kept(tmp_path: Path) -> None:
    class Fragile(LongerJudge):
        def answer(self, request: Request) -> Reply:
            if len(self.asked) == 2:
                raise RunError("the judge has left")
            return super().answer(request)

    pairs = dataset(tmp_path / "pairs")
    with pytest.raises(RunError, match="has left"):
        annotate(pairs, Fragile())
    labels = pairs.preferences("mine")
    assert 0 < (labels == 3).sum() < 6
    assert all(label in (3, truth) for label, truth in zip(labels, longer(ROWS), strict=True))


@pytest.mark.parametrize("given", [None, 1, Reply])
@pytest.mark.parametrize("method", ["answer", "ask"])
def test_a_judge_that_answers_with_anything_but_text_is_named(method: str, given: Any, tmp_path: Path) -> None:
    class Wrong(LongerJudge):
        pass

    def ask(judge: Judge, requests: Any, on_reply: Any) -> None:
        for request in requests:
            on_reply(request, given)

    setattr(Wrong, method, ask if method == "ask" else lambda judge, request: given)
    with pytest.raises(RunError, match="a judge's answer must be a string or a Reply with a string, got"):
        annotate(dataset(tmp_path / "pairs"), Wrong())


@pytest.mark.parametrize(("id", "reason"), [("function", "needs first, second"), ("number", "is 1")])
def test_a_function_that_creates_no_judge_is_refused(id: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"judge 'test-{id}' {reason}; a judge is a subclass of .*Judge with answer"):
        judges.create(f"test-{id}")


def test_a_run_that_stops_before_any_answer_leaves_the_name_free(tmp_path: Path) -> None:
    class Gone(LongerJudge):
        def answer(self, request: Request) -> Reply:
            raise RunError("no connection")

    pairs = dataset(tmp_path / "pairs")
    with pytest.raises(RunError, match="no connection"):
        annotate(pairs, Gone())
    assert pairs.annotators() == []
    annotate(pairs, LongerJudge(), question=GOLD)
    same = dataset(tmp_path / "same", [("a", "a")])  # there is nothing to ask, but labels are written
    annotate(same, Gone())
    assert same.preferences("mine").tolist() == [2]


def test_chunks_share_no_question(tmp_path: Path) -> None:
    rows = [(f"a{n}", "b" * (n % 7)) for n in range(200)] * 2
    pairs, judge = dataset(tmp_path / "pairs", rows), LongerJudge()
    parts = [Annotation(pairs, judge, QUESTION).items(chunk, 4) for chunk in range(4)]
    keys = [item.key for part in parts for item in part]
    assert len(keys) == len(set(keys)) == 200 and min(map(len, parts)) > 25
    for chunk in range(4):
        before = len(judge.asked)
        annotate(pairs, judge, chunk=chunk, chunks=4)
        assert len(judge.asked) - before == len(parts[chunk])
    assert pairs.preferences("mine").tolist() == longer(rows)


def test_labels_are_written_under_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("You kill the newt!", "It's a wall."), ("It's a wall.", "You kill the newt!"), ("", "")]
    folder = dataset(tmp_path / "pairs", rows).folder
    assert command(folder, "--dry-run") == 0
    assert "1 to send" in capsys.readouterr().out
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
        assert "1 requests failed (first failure: HTTP 500" in capsys.readouterr().err
        assert server.bodies[0]["top_k"] == 50 and "top_p" not in server.bodies[0]
        assert server.bodies[0]["model"] == "org/some.model"
        assert command(folder, *words) == 0
        out = capsys.readouterr().out
        assert "tokens      200 input, 14 output in total" in out and "cost        0.00 in total" in out
        assert len(server.bodies) == 3
    assert open_pairs(folder).preferences("openai_some-model_msg_defaultgoal_default").tolist() == [1, 0]


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
        (["--judge", "rules", "tbl=3"], "judge 'rules' has an unknown argument 'tbl'"),
        (["--judge", "openai"], "model"),
        (["--judge", "openai", "sk-123456789012345678901234567890"], "expected key=value"),
        ([*_OPENAI, "answer=words"], "answer must be one of line, .*, got 'words'"),
        (["--judge", "transformers", "model=m", "top_p=2"], "top_p must be at most 1, got 2"),
        ([*_OPENAI, "extra=5"], "extra must be a mapping, .*, got 5"),
        (["--judge", "openai", "model=["], "cannot be read as YAML"),
        (["--judge", "rules", "rules=5"], "rules must be a list, .*, got 5"),
        (["--goal", "goal"], "unknown goal"),
        (["--chunks", "2"], "needs --chunk I"),
        (["--chunks", "2", "--chunk", "2"], "numbered from 0 to 1"),
        (["--judge", "score"], "unknown info 'score'"),
        (["--judge", "random", "--prompt", "reworded"], "--prompt has no effect with --judge random"),
        (["--judge", "random", "--chunks", "2", "--chunk", "0"], "--chunks has no effect"),
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
    with pytest.raises(ConfigError, match="from a different judge or program"):
        command(pairs.folder, "--judge", "random", "seed=4", "--name", "other")
    assert not (tmp_path / "pairs" / "answers").exists()


def test_durations_have_fitting_units() -> None:
    durations = [duration(seconds) for seconds in (0.4, 119, 120, 7199, 7200, 9000)]
    assert durations == ["0 s", "119 s", "2 min", "120 min", "2.0 h", "2.5 h"]
