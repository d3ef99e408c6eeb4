"""The judge behind a server, against a real one on loopback that misbehaves."""

import json
import socket
import time
from pathlib import Path

import pytest

from groundling.errors import ConfigError, RunError
from groundling.io.chat_server import _retry_after
from groundling.judges import Annotation, OpenAIJudge, Question
from tests.judges.asking.chat_server import ChatServer, serving
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


@pytest.mark.parametrize("trouble", ["429", "drop", "nonsense", *thorough("500", "hang", "drip", "half", "huge")])
def test_requests_that_get_no_answer_are_named_and_asked_next_time(tmp_path: Path, trouble: str) -> None:
    broken = True

    def treat(number: int) -> str:
        return trouble if broken and number >= 5 else "ok"

    with serving(ChatServer(treat=treat)) as server:
        pairs = dataset(tmp_path / "pairs", 8)
        annotation = Annotation(
            pairs, judge(server, max_retries=0, concurrency=1, timeout=0.6), Question(world="nethack")
        )
        summary = annotation.run("llm")
        assert (summary.asked, summary.failed, summary.labels["unknown"]) == (5, 3, 3)
        assert summary.first_failure
        broken = False
        again = annotation.run("llm")
    assert (again.asked, again.failed) == (3, 0)
    assert pairs.preferences("llm").tolist() == EXPECTED[:8]
    assert len(server.bodies) == 5 + 3 + 3


def test_a_server_that_only_fails_stops_the_run(tmp_path: Path) -> None:
    with serving(ChatServer(treat=lambda number: "ok" if number < 4 else "500")) as server:
        pairs = dataset(tmp_path / "pairs", 40)
        with pytest.raises(RunError, match="20 requests in a row got no answer; the last one: HTTP 500"):
            Annotation(pairs, judge(server, max_retries=0), Question(world="nethack")).run("llm")
    labels = pairs.preferences("llm")
    assert (labels != 3).sum() == 4, "earlier answers are kept"
    assert all(labels[n] in (3, EXPECTED[n]) for n in range(40))


def test_no_server_no_access_and_no_such_model_stop_the_run(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(RunError, match=r"no connection .* 4 times: is the server running\?"):
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


@pytest.mark.parametrize("wrong", [{"timeout": 0.0}, {"max_retries": -1}, {"backoff": -1.0}, {"max_reply_bytes": 0}])
def test_numbers_out_of_bounds_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name} must not be"):
        judge(ChatServer(url="http://127.0.0.1:1/v1"), **wrong)


def test_a_schema_is_asked_for_and_left_out_where_it_is_refused() -> None:
    seen: list[tuple[bool, bool]] = []

    def treat(number: int) -> str:
        body = server.bodies[number]
        seen.append(("response_format" in body, "logprobs" in body))
        return "400" if "response_format" in body else "ok"

    reply = '{"analysis": "x", "verdict": "1"}'
    with serving(ChatServer(treat=treat, write=lambda body: reply)) as server:
        one = judge(server, answer="json", concurrency=1)
        with pytest.warns(UserWarning, match="refuses response_format: requests continue without") as warnings:
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
        with pytest.warns(UserWarning, match="refuses structured_outputs and logprobs") as warnings:
            assert all(reply.text == "1" for reply in ask(one, 8))
        before = len(server.bodies)
        ask(one, 2)
    assert len(warnings) == 1
    assert len(server.bodies) == before + 2, "left out for good"


def test_a_request_that_is_refused_fails_alone() -> None:
    def treat(number: int) -> str:
        return "400" if "a1xx" in server.bodies[number]["messages"][1]["content"] else "ok"

    with serving(ChatServer(treat=treat)) as server:
        replies = ask(judge(server), 3)
    assert [reply.failure is None for reply in replies] == [True, False, True]
    assert "HTTP 400" in str(replies[1].failure)


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


def test_a_permanent_error_in_a_reply_of_status_200_is_not_repeated() -> None:
    with serving(ChatServer(replace=lambda number: error_of(401))) as server:
        with pytest.raises(RunError, match="broken inside"):
            ask(judge(server, concurrency=1))
        assert len(server.bodies) == 1
    with serving(ChatServer(replace=lambda number: error_of(400))) as server:
        assert "broken inside" in str(ask(judge(server, soft_labels=False))[0].failure)
        assert len(server.bodies) == 1
    with serving(ChatServer(replace=lambda number: None, also={"error": None})) as server:
        assert ask(judge(server))[0].failure is None


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


@pytest.mark.parametrize("content", [None, 3, ["Verdict: 1"]])
def test_odd_contents_are_no_answer(content: object) -> None:
    with serving(ChatServer(write=lambda body: content)) as server:  # type: ignore[arg-type, return-value]
        reply = ask(judge(server))[0]
    assert (reply.failure is None) == (content is None)  # null is an empty reply


def test_a_reply_that_was_cut_off_is_not_complete() -> None:
    with serving(ChatServer(more=lambda body: {"finish_reason": "length"})) as server:
        assert not ask(judge(server))[0].complete


def test_contents_in_parts_are_joined() -> None:
    words = ("The longer one.\n", "Verdict: 1")
    parts = [{"type": "text", "text": text} for text in words] + [{"type": "image"}]
    reply = {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}
    with serving(ChatServer(replace=lambda number: reply)) as server:
        assert ask(judge(server))[0].text == "The longer one.\nVerdict: 1"
