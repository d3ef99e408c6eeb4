"""Which questions a dataset raises, how they are asked, and the labels that come of the answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from groundling.errors import ConfigError, RunError
from groundling.judges import Annotation, Judge, Preference, Question, Reply, Request, open_pairs
from groundling.judges.asking.judge import JudgeRegistry
from groundling.judges.preferences.store import Store
from tests.judges.asking.annotating import QUESTION, ROWS, LongerJudge, annotate, dataset, longer

GOLD = Question("gold", world="nethack")


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
    # Another dataset with the same store asks only what is new.
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
    """Gives no verdict before a conversation has ``certain`` messages."""

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
    summary = annotate(pairs, judge)  # invalid answers are asked again
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
    with pytest.raises(ConfigError, match="choose another --name"):
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
    # The longer one shown first: 0.7 for it, 0.2 against; shown second: 0.5 for it, 0.4 against.
    soft = pairs.soft_preferences("soft")
    np.testing.assert_allclose(soft, [[0.3, 0.6, 0.1], [0.6, 0.3, 0.1], [0, 0, 1]], rtol=1e-6)
    assert soft is not None and soft.dtype == np.float32


def test_probabilities_alone_are_an_answer(tmp_path: Path) -> None:
    class Wordless(Judge):
        def answer(self, request: Request) -> Reply:
            return Reply("", probabilities=(0.2, 0.7, 0.1))

    pairs = dataset(tmp_path / "pairs", [("a", "bb")])
    summary = annotate(pairs, Wordless(), both_orders=True)
    assert (summary.invalid, summary.first_rate) == (0, 0.0)


def test_labels_of_another_question_are_not_overwritten(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs")
    pairs.write_preferences("theirs", np.zeros(8, np.int8))
    for question in (QUESTION, GOLD):
        with pytest.raises(ConfigError, match="of another question"):
            annotate(pairs, LongerJudge(), "theirs", question)
    annotate(pairs, LongerJudge(), "ours")
    with pytest.raises(ConfigError, match="of another question"):
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


def test_a_run_that_stops_before_any_answer_leaves_the_name_free(tmp_path: Path) -> None:
    class Gone(LongerJudge):
        def answer(self, request: Request) -> Reply:
            raise RunError("no connection")

    pairs = dataset(tmp_path / "pairs")
    with pytest.raises(RunError, match="no connection"):
        annotate(pairs, Gone())
    assert pairs.annotators() == []
    annotate(pairs, LongerJudge(), question=GOLD)
    same = dataset(tmp_path / "same", [("a", "a")])  # nothing to ask: labels are written all the same
    annotate(same, Gone())
    assert same.preferences("mine").tolist() == [2]


def test_a_judge_with_few_verdicts_is_stopped(tmp_path: Path) -> None:
    class Rare(LongerJudge):
        count = 0

        def answer(self, request: Request) -> Reply:
            self.count += 1
            return super().answer(request) if self.count % 30 == 0 else Reply("Hm.")

    pairs = dataset(tmp_path / "pairs", [(f"a{n}", "b" * (n % 9)) for n in range(400)])
    with pytest.raises(RunError, match=r"only \d% of 200 answers have a verdict.*'Hm\.'"):
        annotate(pairs, Rare())
    assert (pairs.preferences("mine") < 2).sum() > 0, "its verdicts are kept"


def test_judges_without_a_reply_get_a_message(tmp_path: Path) -> None:
    class Wordless(LongerJudge):
        def answer(self, request: Request) -> Reply:
            return None  # type: ignore[return-value]

    class Empty(Judge):
        """Implements neither answer nor ask."""

    pairs = dataset(tmp_path / "pairs")
    with pytest.raises(RunError, match=r"Wordless answers None, expected a text or a groundling.judges.Reply"):
        annotate(pairs, Wordless())
    with pytest.raises(ConfigError, match="the judge Empty defines neither answer nor ask"):
        annotate(pairs, Empty())


def test_a_function_that_would_judge_gets_a_message() -> None:
    registry = JudgeRegistry("judge")

    @registry.register("mine")
    def prefer(first: str, second: str) -> int:
        return 1

    with pytest.raises(ConfigError, match=r"judge 'mine' needs first, second; .* groundling\.judges\.Judge"):
        registry.create("mine")


def test_answers_are_written_before_another_question_is_asked(tmp_path: Path) -> None:
    written: list[int] = []

    class Counting(LongerJudge):
        def answer(self, request: Request) -> Reply:
            written.append(len(Store(annotation.store.folder, annotation.store.question).read()))
            return super().answer(request)

    pairs = dataset(tmp_path / "pairs", [("a", "bb"), ("a", "ccc"), ("bb", "ccc")])
    annotation = Annotation(pairs, Counting(), QUESTION)
    annotation.run("mine")
    assert written == [0, 1, 2]


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


def test_parquet_is_annotated_alike(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs").convert(tmp_path / "parquet", "parquet")
    annotate(pairs, LongerJudge())
    assert open_pairs(tmp_path / "parquet").preferences("mine").tolist() == longer(ROWS)


def test_annotation_of_a_converted_dataset_continues(tmp_path: Path) -> None:
    pairs, judge = dataset(tmp_path / "pairs"), LongerJudge()
    annotate(pairs, judge, chunk=0, chunks=2)
    pairs.write_preferences("theirs", np.zeros(8, np.int8))  # without an account
    known = len(judge.asked)
    assert 0 < known < 3
    again = pairs.convert(tmp_path / "parquet", "parquet").convert(tmp_path / "motif", "motif")
    assert again.read_provenance("mine") == pairs.read_provenance("mine") != {}
    assert again.read_provenance("theirs") == {}
    summary = annotate(again, judge)
    assert len(judge.asked) == 3 and summary.asked == 3 - known
    assert again.preferences("mine").tolist() == longer(ROWS)
