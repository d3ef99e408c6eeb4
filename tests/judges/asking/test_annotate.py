"""From a dataset to its labels: what is asked, how often, and what kills cost."""

import argparse
import importlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import groundling.worlds  # noqa: F401  (which tell judges what they are; the processes that are killed read no conftest)
from groundling.cli.annotate import add_parser
from groundling.cli.command import duration
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.judges import (
    Annotation,
    Judge,
    MessagePairs,
    OpenAIJudge,
    Pairs,
    Preference,
    Question,
    Reply,
    Request,
    fence,
    open_pairs,
)
from groundling.judges.asking.judge import JudgeRegistry
from groundling.judges.preferences.store import Store
from tests.judges.asking.chat_server import ChatServer, captions, serving, verdict
from tests.judges.preferences.test_pairs import encode
from tests.thorough import thorough


def dataset(folder: Path, rows: Iterable[tuple[str, str]]) -> Pairs:
    rows = list(rows)
    messages = encode(*(text for row in rows for text in row)).reshape(len(rows), 2, 1, 256)
    return MessagePairs.create(folder, {"message": messages})


def longer(rows: Iterable[tuple[str, str]]) -> list[int]:
    """The labels of whoever prefers the longer caption."""
    return [2 if len(a) == len(b) else 0 if len(a) > len(b) else 1 for a, b in rows]


class LongerJudge(Judge):
    """Prefers the longer caption, and counts what it is asked."""

    def __init__(self, bias: str | None = None) -> None:
        self.bias = bias
        self.asked: list[tuple[str, str]] = []

    def answer(self, request: Request) -> Reply:
        first, second = fence.read_both(request.conversation[1]["content"])
        self.asked.append((first, second))
        word = self.bias or verdict(first, second)
        return Reply(f"Verdict: {word}", prompt_tokens=10, completion_tokens=2)


ROWS = [("a", "bb"), ("bb", "a"), ("ccc", "ccc"), ("", "a"), ("bb", "a"), ("", ""), ("a", "bb"), ("ccc", "bb")]


def test_each_distinct_unordered_pair_is_asked_once(tmp_path: Path) -> None:
    pairs, judge = dataset(tmp_path / "pairs", ROWS), LongerJudge()
    annotation = Annotation(pairs, judge, Question(world="nethack"))
    estimate = annotation.estimate()
    assert (estimate.rows, estimate.identical, estimate.distinct) == (8, 2, 3)
    assert (estimate.requests, estimate.known, estimate.cost) == (3, 0, None)
    assert not (tmp_path / "pairs" / "answers").exists(), "an estimate writes nothing"
    summary = annotation.run("mine")
    assert pairs.preferences("mine").tolist() == longer(ROWS)
    assert pairs.soft_preferences("mine") is None
    assert len(judge.asked) == 3 == len({frozenset(pair) for pair in judge.asked})
    assert summary.labels == {"first": 3, "second": 3, "tie": 2, "unknown": 0}
    assert (summary.prompt_tokens, summary.completion_tokens, summary.asked) == (30, 6, 3)

    # Another dataset with the same store asks only for what is new.
    more = dataset(tmp_path / "more", [("bb", "a"), ("dddd", "a")])
    Annotation(more, judge, Question(world="nethack"), folder=tmp_path / "pairs" / "answers").run("mine")
    assert more.preferences("mine").tolist() == [0, 0] and len(judge.asked) == 4
    after = Annotation(more, judge, Question(world="nethack"), folder=tmp_path / "pairs" / "answers").estimate()
    assert (after.requests, after.known) == (0, 2)


def test_estimates_go_by_the_answers_that_are_known(tmp_path: Path) -> None:
    rows = [(f"a{n}", "b") for n in range(40)]
    pairs, judge = dataset(tmp_path / "pairs", rows), LongerJudge()
    judge.cost = lambda prompt, completion: prompt * 2 + completion * 3  # type: ignore[method-assign]
    annotation = Annotation(pairs, judge, Question(world="nethack"))
    first = annotation.estimate()
    length = sum(len(turn["content"]) for turn in Question(world="nethack").conversation("a", "b", "line"))
    assert first.prompt_tokens == pytest.approx(40 * length / 4, rel=0.01) and first.seconds is None
    Annotation(pairs, judge, Question(world="nethack")).run("mine", chunk=0, chunks=2)
    second = annotation.estimate(1, 2)
    count = second.requests
    assert 8 < count < 32 and len(judge.asked) == 40 - count
    assert annotation.estimate().requests == count
    assert annotation.estimate().prompt_tokens == 10 * count
    assert annotation.estimate().cost == pytest.approx(10 * count * 2 + 2 * count * 3)


def test_a_reply_without_verdict_is_asked_for_once_more_then_invalid(tmp_path: Path) -> None:
    seen: list[int] = []

    class Hesitant(LongerJudge):
        certain = 99

        def answer(self, request: Request) -> Reply:
            seen.append(len(request.conversation))
            reply = super().answer(request)
            return reply if len(request.conversation) >= self.certain else Reply("It depends.", prompt_tokens=1)

    pairs, judge = dataset(tmp_path / "pairs", ROWS), Hesitant()
    annotation = Annotation(pairs, judge, Question(world="nethack"))
    summary = annotation.run("mine")
    assert seen == [2, 4] * 3
    assert (summary.answered, summary.invalid, summary.failed) == (3, 3, 0)
    assert not summary.written and pairs.annotators() == [], "labels without a verdict are none"
    assert summary.invalid_reply == "It depends."
    judge.certain = 4
    summary = annotation.run("mine")  # the invalid ones are asked again
    assert seen == [2, 4] * 6 and summary.invalid == 0
    # Three times "It depends." twice (one token each), then once, and three verdicts of 10 and 2 tokens.
    assert (summary.prompt_tokens, summary.completion_tokens) == (6 + 3 + 30, 6), "all that was paid for"
    assert pairs.preferences("mine").tolist() == longer(ROWS)
    lines = [
        json.loads(line) for path in (tmp_path / "pairs/answers/answers").rglob("*.jsonl") for line in path.open()
    ]
    assert [line["replies"][0] for line in lines] == ["It depends."] * 6
    assert sum(line["label"] == "invalid" for line in lines) == 3


def test_what_a_request_has_cost_before_it_failed_is_counted(tmp_path: Path) -> None:
    class Leaving(LongerJudge):
        here = False

        def answer(self, request: Request) -> Reply:
            if self.here:
                return super().answer(request)
            if len(request.conversation) == 2:
                return Reply("It depends.", prompt_tokens=5, completion_tokens=3)
            return Reply("", failure="gone")

    pairs, judge = dataset(tmp_path / "pairs", ROWS), Leaving()
    judge.cost = lambda prompt, completion: prompt + 100 * completion  # type: ignore[method-assign]
    first = Annotation(pairs, judge, Question(world="nethack")).run("mine")
    assert (first.asked, first.failed, first.first_failure) == (0, 3, "gone")
    assert (first.prompt_tokens, first.completion_tokens, first.cost) == (15, 9, 915)
    judge.here = True
    second = Annotation(pairs, judge, Question(world="nethack")).run("mine")
    assert (second.asked, second.failed, second.invalid) == (3, 0, 0)
    assert (second.prompt_tokens, second.completion_tokens) == (15 + 30, 9 + 6)
    assert pairs.preferences("mine").tolist() == longer(ROWS)


def test_both_orders_and_what_they_tell_of_bias(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs", ROWS)
    fair = Annotation(pairs, LongerJudge(), Question(world="nethack"), both_orders=True).run("fair")
    assert (fair.answered, fair.first_rate, fair.inconsistent) == (6, 0.5, 0.0)
    assert pairs.preferences("fair").tolist() == longer(ROWS)
    biased = LongerJudge(bias="1")
    store = tmp_path / "store"
    both = Annotation(pairs, biased, Question(world="nethack"), folder=store, both_orders=True).run("biased")
    assert len(biased.asked) == 6 == len(set(biased.asked))
    assert (both.first_rate, both.inconsistent) == (1.0, 1.0)
    assert pairs.preferences("biased").tolist() == [2] * 8, "two verdicts that differ are a tie"
    with pytest.raises(ConfigError, match="choose another --name"):
        Annotation(pairs, biased, Question(world="nethack"), folder=store).run("biased")
    single = Annotation(pairs, biased, Question(world="nethack"), folder=store).run("single")
    assert single.asked == 0, "what was asked in both orders is known in one"


def test_which_one_is_shown_first_is_a_fair_coin(tmp_path: Path) -> None:
    rows = [(f"a{n}", "b" * (n % 3 + 1)) for n in range(600)]
    pairs, judge = dataset(tmp_path / "pairs", rows), LongerJudge(bias="1")
    judge.effortless = True
    Annotation(pairs, judge, Question(world="nethack")).run("mine")
    first = np.mean(pairs.preferences("mine") == Preference.FIRST)
    assert 0.42 < first < 0.58  # 0.5 ± 4 standard errors


def test_soft_labels_are_averaged_over_orders_and_turned_with_the_rows(tmp_path: Path) -> None:
    class Soft(LongerJudge):
        def answer(self, request: Request) -> Reply:
            reply = super().answer(request)
            sure = (0.7, 0.2, 0.1) if reply.text.endswith("1") else (0.4, 0.5, 0.1)
            return Reply(reply.text, probabilities=sure)

    rows = [("a", "bb"), ("bb", "a"), ("a", "a")]
    pairs = dataset(tmp_path / "pairs", rows)
    Annotation(pairs, Soft(), Question(world="nethack"), both_orders=True).run("soft")
    # Shown longer first: 0.7 for it, 0.2 against; shown longer second: 0.5 for it, 0.4 against.
    soft = pairs.soft_preferences("soft")
    np.testing.assert_allclose(soft, [[0.3, 0.6, 0.1], [0.6, 0.3, 0.1], [0, 0, 1]], rtol=1e-6)
    assert soft is not None and soft.dtype == np.float32


def test_labels_from_elsewhere_are_not_overwritten(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs", ROWS)
    pairs.write_preferences("theirs", np.zeros(8, np.int8))
    for question in (Question(world="nethack"), Question("gold", world="nethack")):
        with pytest.raises(ConfigError, match="of another question"):
            Annotation(pairs, LongerJudge(), question).run("theirs")
    Annotation(pairs, LongerJudge(), Question(world="nethack")).run("ours")
    with pytest.raises(ConfigError, match="of another question"):
        Annotation(pairs, LongerJudge(), Question("gold", world="nethack")).run("ours")
    with pytest.raises(ConfigError, match="numbered from 0 to 1"):
        Annotation(pairs, LongerJudge(), Question(world="nethack")).run("ours", chunk=2, chunks=2)


def test_what_was_told_before_an_error_is_kept(tmp_path: Path) -> None:
    class Fragile(LongerJudge):
        def answer(self, request: Request) -> Reply:
            if len(self.asked) == 2:
                raise RunError("the judge has left")
            return super().answer(request)

    pairs, judge = dataset(tmp_path / "pairs", ROWS), Fragile()
    with pytest.raises(RunError, match="has left"):
        Annotation(pairs, judge, Question(world="nethack")).run("mine")
    labels = pairs.preferences("mine")
    assert 0 < (labels == 3).sum() < 6
    assert all(label in (3, truth) for label, truth in zip(labels, longer(ROWS), strict=True))


def test_a_run_without_any_answer_leaves_the_name_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dataset(tmp_path / "pairs", ROWS).folder
    with serving(ChatServer(treat=lambda number: "500")) as server:
        words = [str(folder), "--name", "mine", "--judge", "openai", "model=m", f"base_url={server.url}"]
        assert command(*words, "max_retries=0", "temperature=0.3") == 1
        assert "no labels were written: there is no verdict yet" in capsys.readouterr().out
        assert not (folder / "annotations").exists() and open_pairs(folder).annotators() == []
        server.treat = lambda number: "ok"
        assert command(*words, "max_retries=0", "temperature=0.2") == 0
        assert "written as 'mine'" in capsys.readouterr().out
    assert open_pairs(folder).preferences("mine").tolist() == longer(ROWS)


def test_a_judge_that_is_no_good_is_left(tmp_path: Path) -> None:
    """Within 50 requests beyond those that were on their way."""
    rows = [(f"a{n}", "b" * (n % 9)) for n in range(3000)]
    folder = dataset(tmp_path / "pairs", rows).folder
    with serving(ChatServer(write=lambda body: "It \x1b[1mdepends\n on taste.")) as server:
        words = [str(folder), "--name", "mine", "--judge", "openai", "model=m", f"base_url={server.url}"]
        with pytest.raises(RunError, match="20 answers in a row have no verdict in the form 'line'") as left:
            command(*words, "concurrency=8")
        assert "the last reply: 'It [1mdepends on taste.'" in str(left.value)
        assert len(server.bodies) <= 50 + 8
    assert open_pairs(folder).annotators() == []


def test_a_judge_whose_answer_is_no_reply_is_told_what_one_is(tmp_path: Path) -> None:
    class Wordless(LongerJudge):
        def answer(self, request: Request) -> Reply:
            return None  # type: ignore[return-value]

    class Empty(Judge):
        """Defines neither answer nor ask."""

    pairs = dataset(tmp_path / "pairs", ROWS)
    with pytest.raises(RunError, match=r"Wordless answers None, expected a groundling.judges.Reply: return Reply"):
        Annotation(pairs, Wordless(), Question(world="nethack")).run("mine")
    with pytest.raises(ConfigError, match="the judge Empty defines neither answer nor ask"):
        Annotation(pairs, Empty(), Question(world="nethack")).run("mine")


def test_a_function_that_would_judge_is_told_what_a_judge_is() -> None:
    registry = JudgeRegistry("judge")

    @registry.register("mine")
    def prefer(first: str, second: str) -> int:
        return 1

    with pytest.raises(ConfigError, match=r"judge 'mine' needs first, second; .* groundling\.judges\.Judge"):
        registry.create("mine")


def test_a_judge_that_hardly_ever_answers_is_left(tmp_path: Path) -> None:
    class Rare(LongerJudge):
        count = 0

        def answer(self, request: Request) -> Reply:
            self.count += 1
            return super().answer(request) if self.count % 30 == 0 else Reply("Hm.")

    pairs = dataset(tmp_path / "pairs", [(f"a{n}", "b" * (n % 9)) for n in range(400)])
    judge = Rare()
    with pytest.raises(RunError, match=r"only \d% of 200 answers have a verdict.*'Hm\.'"):
        Annotation(pairs, judge, Question(world="nethack")).run("mine")
    assert (pairs.preferences("mine") < 2).sum() > 0, "what it said is kept"


def test_a_run_that_stops_before_any_answer_leaves_the_name_free(tmp_path: Path) -> None:
    class Gone(LongerJudge):
        def answer(self, request: Request) -> Reply:
            raise RunError("no connection")

    pairs = dataset(tmp_path / "pairs", ROWS)
    with pytest.raises(RunError, match="no connection"):
        Annotation(pairs, Gone(), Question(world="nethack")).run("mine")
    assert pairs.annotators() == []
    Annotation(pairs, LongerJudge(), Question("gold", world="nethack")).run("mine")
    # Where every caption equals the other, there is nothing to ask, and the labels are written all the same.
    same = dataset(tmp_path / "same", [("a", "a")])
    Annotation(same, Gone(), Question(world="nethack")).run("mine")
    assert same.preferences("mine").tolist() == [2]


def test_answers_are_on_the_disk_before_another_question_is_asked(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs", [("a", "bb"), ("a", "ccc"), ("bb", "ccc")])
    on_disk: list[int] = []

    class Concurrent(LongerJudge):
        """Two workers, step by step: both ask; each is told, and asks again, until there is nothing left."""

        def ask(self, requests: Iterable[Request], tell: Any, keep: Any = None) -> None:
            queue = iter(requests)
            waiting = [next(queue), next(queue)]
            while waiting:
                request = waiting.pop(0)
                tell(request, self.answer(request))
                keep()
                waiting += [following for following in [next(queue, None)] if following]
                on_disk.append(len(Store(annotation.store.folder, annotation.store.question).read()))

    annotation = Annotation(pairs, Concurrent(), Question(world="nethack"))
    annotation.run("mine")
    assert on_disk == [1, 2, 3]


def test_chunks_share_the_pairs_and_nothing_else(tmp_path: Path) -> None:
    rows = [(f"a{n}", "b" * (n % 7)) for n in range(200)] * 2
    pairs, judge = dataset(tmp_path / "pairs", rows), LongerJudge()
    parts = [Annotation(pairs, judge, Question(world="nethack")).items(chunk, 4) for chunk in range(4)]
    keys = [item.key for part in parts for item in part]
    assert len(keys) == len(set(keys)) == 200 and min(map(len, parts)) > 25
    for chunk in range(4):
        before = len(judge.asked)
        Annotation(pairs, judge, Question(world="nethack")).run("mine", chunk=chunk, chunks=4)
        assert len(judge.asked) - before == len(parts[chunk])
    assert pairs.preferences("mine").tolist() == longer(rows)


# Real processes, a real server, real kills.


def _annotate(folder: str, url: str, chunk: int, chunks: int) -> None:
    judge = OpenAIJudge("model", url, concurrency=4, timeout=5, soft_labels=False)
    Annotation(open_pairs(folder), judge, Question(world="nethack")).run("llm", chunk=chunk, chunks=chunks)


def _processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.judges.asking.test_annotate", "httpx2"])
    return context


def _known(pairs: Pairs, url: str) -> set[frozenset[str]]:
    """The pairs whose answers are on the disk."""
    store = Annotation(pairs, OpenAIJudge("model", url), Question(world="nethack")).store
    answered_pairs = set()
    for path in (store.folder / "answers" / store.hash).glob("*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            answered_pairs.add(frozenset(json.loads(line)["captions"]))
    return answered_pairs


@pytest.mark.parametrize(("chunks", "most"), [(2, 4), *thorough((1, 20), (2, 20))])
def test_kills_cost_only_what_was_in_flight(tmp_path: Path, chunks: int, most: int) -> None:
    rng = random.Random(chunks)
    rows = [(f"a{n}" + "x" * (n % 5), "b" * (n % 9)) for n in range(most * 35 // 2)]
    pairs = dataset(tmp_path / "pairs", rows + [(b, a) for a, b in rows])
    context = _processes()
    with serving(ChatServer(latency=0.03)) as server:
        arguments = [(str(pairs.folder), server.url, chunk, chunks) for chunk in range(chunks)]
        useful = kills = 0
        while kills < most:
            known, asked = _known(pairs, server.url), len(server.bodies)
            processes = [context.Process(target=_annotate, args=args) for args in arguments]
            for process in processes:
                process.start()
            while len(server.bodies) == asked and all(process.is_alive() for process in processes):
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.12))
            for process in processes:
                assert process.pid is not None and process.is_alive(), "everything was asked before the last kill"
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            for process in processes:
                process.join()
            time.sleep(0.05)  # the server is done with what was in flight
            again = {frozenset(captions(body)) for body in server.bodies[asked:]} & known
            assert not again, "asked twice although the answer was on the disk"
            useful += len(server.bodies) > asked
        assert useful >= (most - 2) / chunks
        in_flight = len(server.bodies) - len(_known(pairs, server.url))
        assert in_flight <= kills * 4, "at most the requests that were in flight at each kill"
        processes = [context.Process(target=_annotate, args=args) for args in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        distinct = len({frozenset(row) for row in rows})
        assert len(server.bodies) == distinct + in_flight
    labels = open_pairs(pairs.folder).preferences("llm").tolist()
    assert labels == longer(rows) + longer((b, a) for a, b in rows)


def test_two_chunks_at_once_ask_everything_once(tmp_path: Path) -> None:
    rows = [(f"a{n}" + "x" * (n % 5), "b" * (n % 9)) for n in range(120)]
    pairs = dataset(tmp_path / "pairs", rows + [(b, a) for a, b in rows])
    with serving(ChatServer()) as server:
        arguments = [(str(pairs.folder), server.url, chunk, 2) for chunk in range(2)]
        processes = [_processes().Process(target=_annotate, args=args) for args in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        counts = Counter(frozenset(captions(body)) for body in server.bodies)
    assert set(counts.values()) == {1} and len(counts) == 120
    assert pairs.preferences("llm").tolist() == longer(rows) + longer((b, a) for a, b in rows)


# The command


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["annotate", *words])
    status: int = arguments.run(arguments)
    return status


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("You kill the newt!", "It's a wall."), ("It's a wall.", "You kill the newt!"), ("", "")]
    folder = str(dataset(tmp_path / "pairs", rows).folder)
    assert command(folder, "--dry-run") == 0
    assert "1 requests here" in capsys.readouterr().out
    assert open_pairs(folder).annotators() == []
    assert command(folder) == 0
    output = capsys.readouterr().out
    assert "labels      first 1 · second 1 · tie 1 · unknown 0 (of 3)" in output
    name = "rules_msg_defaultgoal_default"
    assert open_pairs(folder).preferences(name).tolist() == [0, 1, 2]
    assert command(folder, "--goal", "gold", "--prompt", "reworded", "--both-orders") == 0
    assert "both orders 0.0%" in capsys.readouterr().out
    assert open_pairs(folder).preferences("rules_msg_gold_reworded").tolist() == [2, 2, 2]
    path = tmp_path / "question.txt"
    path.write_text("Which is better? {goal}")
    assert command(folder, "--question", str(path), "--name", "own", "--store", str(tmp_path / "store")) == 0
    assert (tmp_path / "store" / "answers").is_dir()
    for chunk in "01":
        assert command(folder, "--name", "chunked", "--chunks", "2", "--chunk", chunk) == 0
    assert open_pairs(folder).preferences("chunked").tolist() == [0, 1, 2]


def test_a_judge_of_ones_own(tmp_path: Path) -> None:
    importlib.import_module("examples.own_judge")
    rows = [("You see here a rock.", "You, you, you."), ("a b", "c d"), ("a b c", "a b")]
    folder = str(dataset(tmp_path / "pairs", rows).folder)
    assert command(folder, "--judge", "variety", "least=2", "--prompt", "reworded") == 0
    assert open_pairs(folder).preferences("variety_msg_defaultgoal_reworded").tolist() == [0, 2, 2]


def test_the_command_with_a_server_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(dataset(tmp_path / "pairs", [("a", "bb"), ("ccc", "")]).folder)
    treat = lambda number: "500" if number == 1 else "ok"  # noqa: E731
    with serving(ChatServer(treat=treat)) as server:
        words = ["model=org/some.model", f"base_url={server.url}", "concurrency=1", "max_retries=0"]
        prices = ["prompt_price=1.5", "completion_price=2"]
        assert command(folder, "--judge", "openai", *words, *prices, "extra.top_k=50", "extra.top_p=null") == 1
        assert "1 requests got no answer (the first: HTTP 500" in capsys.readouterr().err
        assert server.bodies[0]["top_k"] == 50 and "top_p" not in server.bodies[0]
        assert server.bodies[0]["model"] == "org/some.model"
        assert command(folder, "--judge", "openai", *words, *prices, "extra.top_k=50", "extra.top_p=null") == 0
        out = capsys.readouterr().out
        assert "tokens      200 read, 14 written in all" in out and "cost        0.00 in all" in out
        assert len(server.bodies) == 3
    name = "openai_some-model_msg_defaultgoal_default"
    assert open_pairs(folder).preferences(name).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--judge", "ruels"], "did you mean 'rules'"),
        (["--judge", "rules", "tbl=3"], "unknown argument of judge 'rules' 'tbl'"),
        (["--judge", "openai"], "model"),
        (["--judge", "openai", "sk-123456789012345678901234567890"], "expected key=value"),
        (["--judge", "openai", "api_key=sk-1234567890", "model=m"], "unknown argument .* 'api_key'"),
        (["--judge", "openai", "model=m", "answer=words"], "answer must be one of 'line', .*, got 'words'"),
        (["--judge", "openai", "model=123"], "--judge openai: model must be text, got 123: quote it"),
        (["--judge", "openai", "model=m", "temperature=hot"], "temperature must be of type float, got 'hot'"),
        (["--judge", "openai", "model=m", "soft_labels=maybe"], "soft_labels must be of type bool"),
        (["--judge", "openai", "model=m", "timeout=abc"], "timeout must be of type float"),
        (["--judge", "openai", "model=m", "max_reply_bytes=abc"], "max_reply_bytes must be of type int"),
        (["--judge", "openai", "model=m", "prompt_price=abc"], r"prompt_price must be of type float \| None"),
        (["--judge", "openai", "model=m", "extra=5"], r"extra must be of type dict\[str, .*Any\] \| None, got 5"),
        (["--judge", "openai", "model=["], "cannot be read as YAML"),
        (["--judge", "random", "seed=x"], "--judge random: seed must be of type int, got 'x'"),
        (["--judge", "rules", "rules=5"], "rules 5: expected pairs"),
        (["--goal", "goal"], "unknown goal"),
        (["--chunks", "2"], "needs --chunk I"),
        (["--chunks", "2", "--chunk", "2"], "numbered from 0 to 1"),
        (["--judge", "score"], "unknown info 'score'"),
        (["--judge", "score", "--prompt", "reworded"], "--judge score asks no question: leave --prompt out"),
        (["--judge", "score", "--chunk", "3"], "--judge score asks no question: leave --chunk out"),
        (["--judge", "score", "--chunk", "0"], "leave --chunk out"),
        (["--blstats"], "no blstats"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: list[str], message: str) -> None:
    folder = str(dataset(tmp_path / "pairs", [("a", "bb")]).folder)
    with pytest.raises(GroundlingError, match=message) as error:
        command(folder, *words)
    assert "123456789012" not in str(error.value), "what may be a key is not repeated"
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in (tmp_path / "pairs").iterdir()) == ["data", "info"], "nothing is written"


def test_judges_by_figures(tmp_path: Path) -> None:
    message = np.zeros((4, 2, 2, 256), np.uint8)
    rewards = np.array([[[1, 2], [0, 2]], [[0, 0], [1, 0]], [[1, 1], [2, 0]], [[0, 3], [3, 1]]], np.float32)
    score = np.array([[5, 5], [7, 6], [0, 1], [2, 3]])
    pairs = MessagePairs.create(tmp_path / "pairs", {"message": message, "rewards": rewards}, {"score": score})
    folder = str(pairs.folder)
    for judge in ("score", "return", "random"):
        assert command(folder, "--judge", judge) == 0
    assert pairs.preferences("score").tolist() == [2, 0, 1, 1]
    assert pairs.preferences("return").tolist() == [0, 1, 2, 1]
    assert set(pairs.preferences("random").tolist()) <= {0, 1}
    assert command(folder, "--judge", "random", "seed=3", "--name", "other") == 0
    with pytest.raises(ConfigError, match="by another judge or program"):
        command(folder, "--judge", "random", "seed=4", "--name", "other")
    with pytest.raises(ConfigError, match="leave --goal out"):
        command(folder, "--judge", "return", "--goal", "gold")
    with pytest.raises(ConfigError, match="leave --chunks out"):
        command(folder, "--judge", "random", "--chunks", "2", "--chunk", "0")
    assert not (tmp_path / "pairs" / "answers").exists()


def test_an_annotation_in_parquet(tmp_path: Path) -> None:
    pairs = dataset(tmp_path / "pairs", ROWS).convert(tmp_path / "parquet", "parquet")
    Annotation(pairs, LongerJudge(), Question(world="nethack")).run("mine")
    assert open_pairs(tmp_path / "parquet").preferences("mine").tolist() == longer(ROWS)
    assert Store(tmp_path / "parquet" / "answers", {}).read() == {}


def test_a_converted_dataset_is_gone_on_with(tmp_path: Path) -> None:
    pairs, judge = dataset(tmp_path / "pairs", ROWS), LongerJudge()
    Annotation(pairs, judge, Question(world="nethack")).run("mine", chunk=0, chunks=2)
    pairs.write_preferences("theirs", np.zeros(8, np.int8))  # without an account
    known = len(judge.asked)
    assert 0 < known < 3
    again = pairs.convert(tmp_path / "parquet", "parquet").convert(tmp_path / "motif", "motif")
    assert again.read_account("mine") == pairs.read_account("mine") != {}
    assert again.read_account("theirs") == {}
    summary = Annotation(again, judge, Question(world="nethack")).run("mine")
    assert len(judge.asked) == 3 and summary.asked == 3 - known, "what was answered is not asked again"
    assert again.preferences("mine").tolist() == longer(ROWS)


def test_durations_are_told_in_what_suits_them() -> None:
    durations = [duration(seconds) for seconds in (0.4, 119, 120, 7199, 7200, 9000)]
    assert durations == ["0 s", "119 s", "2 min", "120 min", "2.0 h", "2.5 h"]
