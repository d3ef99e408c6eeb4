"""The judge that queries a server, tested with a faulty server on loopback; its soft labels."""

import json
import math
import socket
import time
from pathlib import Path

import pytest

from groundling.errors import RunError
from groundling.io.chat_server import _retry_after
from groundling.judges import Annotation, OpenAIJudge, Question, TextPairs
from groundling.judges.online.reward import online_judge
from groundling.judges.preferences.pairs import TextSegment
from tests.judges.asking.chat_server import ChatServer, captions, serving, verdict
from tests.judges.asking.server_judge import EXPECTED, ask, dataset, judge
from tests.thorough import one_in, thorough


@pytest.mark.parametrize(
    "trouble", ["429", "hang", "half", "huge", *thorough("500", "503", "408", "drip", "drop", "nonsense")]
)
def test_a_server_that_misbehaves_now_and_then_is_asked_again(tmp_path: Path, trouble: str) -> None:
    with serving(ChatServer(treat=lambda number: trouble if number % 3 == 0 else "ok")) as server:
        pairs = dataset(tmp_path / "pairs", 8)
        summary = Annotation(pairs, judge(server, max_retries=8), Question(world="nethack")).run("llm")
    assert pairs.preferences("llm").tolist() == EXPECTED[:8]
    assert (summary.asked, summary.failed, summary.invalid) == (8, 0, 0)
    assert len(server.bodies) > 8


def test_a_server_that_only_fails_stops_the_run(tmp_path: Path) -> None:
    with serving(ChatServer(treat=lambda number: "ok" if number < 4 else "500")) as server:
        pairs = dataset(tmp_path / "pairs", 40)
        with pytest.raises(RunError, match="20 consecutive requests failed; the last error: HTTP 500"):
            Annotation(pairs, judge(server, max_retries=0), Question(world="nethack")).run("llm")
    labels = pairs.preferences("llm")
    assert (labels != 3).sum() == 4, "earlier answers are kept"
    assert all(labels[n] in (3, EXPECTED[n]) for n in range(40))


def test_no_server_no_access_and_no_such_model_stop_the_run(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(RunError, match=r"no connection .* \(4 attempts\); is the server running\?"):
        ask(OpenAIJudge("model", nowhere, max_retries=3, backoff=0.01))
    for status, message in (
        ("401", "no API key in the environment variable OPENAI_API_KEY"),
        ("404", "check base_url and model"),
    ):
        with serving(ChatServer(treat=lambda number, status=status: status)) as server:
            with pytest.raises(RunError, match=message):
                ask(judge(server, concurrency=1))
            assert len(server.bodies) == 1, "a repetition would mend nothing"


def test_retry_after_is_heeded() -> None:
    treat = lambda number: "429" if number == 0 else "ok"  # noqa: E731
    with serving(ChatServer(treat=treat, reply_headers={"Retry-After": "0.4"})) as server:
        began = time.monotonic()
        assert ask(judge(server))[0].failure is None
    assert 0.4 <= time.monotonic() - began < 3
    assert _retry_after({"retry-after": "7"}) == 7 and _retry_after({"retry-after": "soon"}) is None
    assert _retry_after({}) is None
    in_a_minute = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    assert _retry_after({"retry-after": in_a_minute}) == pytest.approx(60, abs=2)


def test_concurrency_is_bounded() -> None:
    with serving(ChatServer(latency=0.02)) as server:
        ask(judge(server, concurrency=3), 20)
    assert server.most_at_once == 3


def test_a_schema_is_asked_for_and_left_out_where_it_is_refused() -> None:
    seen: list[tuple[bool, bool]] = []

    def treat(number: int) -> str:
        body = server.bodies[number]
        seen.append(("response_format" in body, "logprobs" in body))
        return "400" if "response_format" in body else "ok"

    reply = '{"analysis": "x", "verdict": "1"}'
    with serving(ChatServer(treat=treat, write=lambda body: reply)) as server:
        one = judge(server, answer="json", concurrency=1)
        with pytest.warns(UserWarning, match="rejects response_format: continuing without") as warnings:
            assert [r.text for r in ask(one, 3)] == [reply] * 3
    assert seen == [(True, True), (True, False), (False, True), (False, True), (False, True)]
    assert len(warnings) == 1, "once"
    schema = server.bodies[0]["response_format"]["json_schema"]
    assert schema["schema"]["properties"]["verdict"]["enum"] == ["1", "2", "tie"]


def test_a_server_that_knows_neither_schema_nor_log_probabilities_is_asked_without() -> None:
    def treat(number: int) -> str:
        return "400" if {"structured_outputs", "logprobs"} & server.bodies[number].keys() else "ok"

    with serving(ChatServer(treat=treat, write=lambda body: "1")) as server:
        one = judge(server, answer="choice", concurrency=4)
        with pytest.warns(UserWarning, match="rejects structured_outputs and logprobs") as warnings:
            assert all(reply.text == "1" for reply in ask(one, 8))
        before = len(server.bodies)
        ask(one, 2)
    assert len(warnings) == 1
    assert len(server.bodies) == before + 2, "left out for good"


def test_a_lone_surrogate_in_a_reply_is_replaced(tmp_path: Path) -> None:
    write = lambda body: "It depends \ud800" if len(body["messages"]) == 2 else "Verdict: 1"  # noqa: E731
    with serving(ChatServer(write=write)) as server:
        pairs = dataset(tmp_path / "pairs", 2)
        summary = Annotation(pairs, judge(server), Question(world="nethack")).run("llm")
    assert (summary.asked, summary.failed, summary.invalid) == (2, 0, 0)
    echoed = [body["messages"][2]["content"] for body in server.bodies if len(body["messages"]) > 2]
    assert echoed == ["It depends ?"] * 2


def error_of(code: object) -> dict:
    return {"error": {"message": "broken inside", "code": code}}


@pytest.mark.parametrize(
    "error", one_in(2, [error_of(429), error_of(503), error_of("rate_limited"), {"error": "busy"}])
)
def test_an_error_in_a_reply_of_status_200_is_asked_about_again(error: dict) -> None:
    with serving(ChatServer(replace=lambda number: error if number < 2 else None)) as server:
        assert [reply.failure for reply in ask(judge(server))] == [None]
        assert len(server.bodies) == 3
    with serving(ChatServer(replace=lambda number: error)) as server:
        assert "HTTP 200: " in str(ask(judge(server))[0].failure)
        assert len(server.bodies) == 4


@pytest.mark.parametrize(
    "reply",
    one_in(
        3,
        [
            {"choices": [{"message": None}]},
            {"choices": [{"message": {}}]},
            {"choices": [None]},
            {"choices": []},
            {"choices": {}},
            {"choices": [{"message": {"content": 3}}]},
            {},
        ],
    ),
)
def test_a_malformed_reply_is_asked_for_again(reply: dict) -> None:
    with serving(ChatServer(replace=lambda number: reply if number < 2 else None)) as server:
        assert [reply.failure for reply in ask(judge(server))] == [None]
        assert len(server.bodies) == 3
    with serving(ChatServer(replace=lambda number: reply)) as server:
        failure = str(ask(judge(server))[0].failure)
        assert len(server.bodies) == 4
    assert failure == f"a reply without choices[0].message.content in JSON: {json.dumps(reply)}"


@pytest.mark.parametrize("count", [pytest.param(10**3999, id="4000 digits"), 10**9 + 1, -1, 1.5, "7", True, None])
def test_impossible_numbers_of_tokens_count_as_0(tmp_path: Path, count: object) -> None:
    with serving(ChatServer(also={"usage": {"prompt_tokens": count, "completion_tokens": 10**9}})) as server:
        annotation = Annotation(dataset(tmp_path / "pairs", 2), judge(server), Question(world="nethack"))
        summary = annotation.run("llm")
    assert (summary.prompt_tokens, summary.completion_tokens) == (0, 2 * 10**9)
    assert annotation.estimate().known == 2


def test_contents_in_parts_are_joined() -> None:
    words = ("The longer one.\n", "Verdict: 1")
    parts = [{"type": "text", "text": text} for text in words] + [{"type": "image"}]
    reply = {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}
    with serving(ChatServer(replace=lambda number: reply)) as server:
        assert ask(judge(server))[0].text == "The longer one.\nVerdict: 1"


def _token(text: str, **alternatives: float) -> dict:
    top = [{"token": token, "logprob": math.log(p)} for token, p in alternatives.items()]
    return {"token": text, "top_logprobs": top}


def test_soft_labels_come_from_the_verdicts_token() -> None:
    # The first "1" and the tokens before it are not part of the verdict; "t" begins "tie"; " 2" is the same as "2".
    tokens = [
        _token("1 of", **{"1 of": 0.9}),
        _token("\n", **{"\n": 1.0}),
        _token("Verdict:", **{"Verdict:": 1.0}),
        _token(" 2", **{" 2": 0.4, " 1": 0.2, " t": 0.1, " tie": 0.1, "2": 0.15, " two": 0.05}),
    ]
    with serving(
        ChatServer(write=lambda body: "1 of\nVerdict: 2", more=lambda body: {"logprobs": {"content": tokens}})
    ) as server:
        reply = ask(judge(server))[0]
    assert reply.probabilities == pytest.approx((0.25, 0.5, 0.25))
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, 7)


def test_texts_are_judged_in_the_originals_form_too(tmp_path: Path) -> None:
    def write(body: dict) -> str:
        return f'("best_text": {verdict(*captions(body))})'

    def more(body: dict) -> dict:
        number = verdict(*captions(body))
        tokens = [_token('("best_text": '), _token(number, **{number: 0.75, "None": 0.25}), _token(")")]
        return {"logprobs": {"content": tokens}}

    question = Question(world="writing")
    texts = [(TextSegment("Go on.", ["a"]), TextSegment("Go on.", ["aa"]))]
    pairs = TextPairs.create(tmp_path / "pairs", texts, {}, {"world": "writing"})
    with serving(ChatServer(write=write, more=more)) as server:
        one = judge(server, answer="motif")
        summary = Annotation(pairs, one, question).run("llm")
        assert online_judge(one, question)([("aa", "a"), ("a", "aa")], ["Go on."] * 2) == [1.0, 0.0]
    assert (summary.asked, summary.invalid) == (1, 0)
    assert pairs.preferences("llm").tolist() == [1]
    assert pairs.soft_preferences("llm").tolist() == [[0.0, 1.0, 0.0]]
    assert len(server.bodies) == 3, "no question was repeated"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": None},
        {"logprobs": {"content": [{"token": "other text", "top_logprobs": []}]}},
        {"logprobs": {"content": [{"token": "Verdict: 1", "top_logprobs": [{"token": "1"}]}]}},
        {"logprobs": {"content": "nonsense"}},
        {"logprobs": {"content": [_token("Verdict: 1", zebra=0.5)]}},
        {
            "logprobs": {
                "content": [{"token": "Verdict: 1", "top_logprobs": [{"token": "Verdict: 1", "logprob": 1e6}]}]
            }
        },
    ],
)
def test_without_fitting_log_probabilities_there_are_no_soft_labels(more: dict) -> None:
    with serving(ChatServer(write=lambda body: "Verdict: 1", more=lambda body: more)) as server:
        reply = ask(judge(server))[0]
    assert reply.failure is None and reply.probabilities is None
