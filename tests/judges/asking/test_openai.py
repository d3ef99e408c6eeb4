"""The judge behind a server, against a real one on loopback that misbehaves."""

import json
import logging
import math
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from groundling.errors import ConfigError, RunError
from groundling.io.chat_server import _retry_after
from groundling.judges import Annotation, MessagePairs, OpenAIJudge, Pairs, Question, TextPairs
from groundling.judges.asking.judge import Reply, Request
from groundling.judges.online.questions import online_judge
from groundling.judges.preferences.segments import TextSegment
from tests.judges.asking.chat_server import ChatServer, captions, serving, verdict
from tests.judges.preferences.test_pairs import encode
from tests.thorough import one_in, thorough

KEY = "sk-very-secret-0123456789"


def judge(server: ChatServer, **arguments: object) -> OpenAIJudge:
    defaults = {"timeout": 0.5, "max_retries": 3, "backoff": 0.01, "concurrency": 4}
    return OpenAIJudge("model", server.url, **{**defaults, **arguments})  # type: ignore[arg-type]


def dataset(folder: Path, count: int) -> Pairs:
    """``count`` rows with as many distinct pairs, the first one longer in even rows."""
    texts = [(f"a{n}" + "x" * 9, f"b{n}")[:: 1 if n % 2 == 0 else -1] for n in range(count)]
    return MessagePairs.create(
        folder, {"message": encode(*(t for pair in texts for t in pair)).reshape(count, 2, 1, 256)}
    )


EXPECTED = [0, 1] * 50


def ask(one: OpenAIJudge, count: int = 1) -> list[Reply]:
    question = Question(world="nethack")
    requests = [
        Request(n, question.conversation(f"a{n}xx", f"b{n}", one.answer_format), "defaultgoal") for n in range(count)
    ]
    replies: dict[int, Reply] = {}

    def tell(request: Request, reply: Reply) -> None:
        replies[request.number] = reply

    one.ask(requests, tell)
    return [replies[n] for n in range(count)]


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
    assert (labels != 3).sum() == 4, "what it was told before is kept"
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


def test_pauses_grow_and_differ() -> None:
    server = judge(ChatServer(url="http://127.0.0.1:1/v1"), backoff=1.0).server
    for attempt, longest in ((0, 1), (1, 2), (3, 8), (20, 60)):
        pauses = [server._pause(attempt, None) for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
    assert server._pause(0, 30.0) == 30 and server._pause(0, 1e9) == 300


def test_concurrency_is_bounded() -> None:
    with serving(ChatServer(latency=0.02)) as server:
        ask(judge(server, concurrency=3), 20)
    assert server.most_at_once == 3


def test_the_key_is_sent_and_stands_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    # The server repeats the key: in the model's words, and in its errors.
    write = lambda body: f"I was given {KEY}.\nVerdict: {verdict(*captions(body))}"  # noqa: E731
    notices = []
    with serving(ChatServer(write=write)) as server:
        pairs = dataset(tmp_path / "pairs", 4)
        annotation = Annotation(
            pairs, judge(server, api_key_env="MY_KEY"), Question(world="nethack"), notice=notices.append
        )
        summary = annotation.run("llm")
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    with serving(ChatServer(treat=lambda number: "401")) as server, pytest.raises(RunError) as error:
        ask(judge(server, api_key_env="MY_KEY"))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"I was given [key]." in written
    for text in (caplog.text, str(error.value), repr(summary), repr(notices), written.decode("latin-1")):
        assert KEY not in text
    assert "Bearer [key]" in str(error.value) and "the API key in MY_KEY" in str(error.value)
    assert KEY not in repr(vars(annotation.judge)["server"]), "the client's repr shows its fields"


ODD_KEY = "sk/very'secret\\01234"
"""A key of which JSON or Python's repr escape something."""


@pytest.mark.parametrize("key", [KEY, ODD_KEY])
@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\nfoo bar {}\r\n\r\n", "HTTQ {}\r\n\r\n"])
def test_a_key_that_the_client_quotes_is_scrubbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, key: str
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    raw = head.format(key).encode()
    with serving(ChatServer(raw=lambda number: raw if number else None)) as server:
        pairs = dataset(tmp_path / "pairs", 2)
        one = judge(server, api_key_env="MY_KEY", max_retries=0, concurrency=1)
        summary = Annotation(pairs, one, Question(world="nethack")).run("llm")
        online = online_judge(one, Question(world="nethack"))
        with pytest.raises(RunError, match=r"answered none of 1 .*\[key\]") as error:
            online([("a", "b")], [""])
    assert summary.first_failure is not None and "[key]" in summary.first_failure
    account = (tmp_path / "pairs" / "annotations" / "llm.json").read_text()
    for text in (summary.first_failure, account, str(error.value)):
        assert "secret" not in text


@pytest.mark.parametrize("key", [f"{KEY}\n{KEY}", f"{KEY} x", f"{KEY}\u20ac", f"{KEY}\x7f"])
def test_a_key_that_is_none_is_not_told(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="the API key in MY_KEY has characters") as error:
        OpenAIJudge("model", api_key_env="MY_KEY")
    assert KEY not in str(error.value)


@pytest.mark.parametrize("key", [KEY, "gsk_0123456789abcdef", "0123ABCDEF", ""])
def test_a_key_in_the_place_of_its_variable_is_not_told(key: str) -> None:
    with pytest.raises(ConfigError, match="as in OPENAI_API_KEY") as error:
        OpenAIJudge("model", "no url", api_key_env=key)
    assert "\n" not in str(error.value) and (not key or key not in str(error.value))


def test_a_variable_in_small_letters_is_read_if_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("my_key", KEY)
    assert KEY not in OpenAIJudge("model", api_key_env="my_key").server.scrub(KEY)


def test_an_error_that_repeats_the_key_is_scrubbed_before_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server = judge(ChatServer(url="http://127.0.0.1:1/v1"), api_key_env="MY_KEY").server
    for lead in range(160, 205):
        assert "sk-very" not in server._excerpt(b"x" * lead + KEY.encode())


@pytest.mark.parametrize("key", [KEY, ODD_KEY])
def test_a_key_where_reading_stops_shows_no_part(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    server = judge(ChatServer(url="http://127.0.0.1:1/v1"), api_key_env="MY_KEY").server
    escaped_key = json.dumps(key)[1:-1].replace("/", "\\/").encode()
    for lead in range(2**16 - len(escaped_key) - 2, 2**16 + 2):
        assert server._excerpt(b" " * lead + escaped_key + b"!") in ("", "[key]", "[key]!", "[key", "[ke", "[k", "[")
    assert server._excerpt(b"wrong key " + escaped_key) == "wrong key [key]"


def test_a_dummy_key_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    write = lambda body: "Of 1 and 2.\nVerdict: 1"  # noqa: E731
    monkeypatch.setenv("OPENAI_API_KEY", "1")
    with serving(ChatServer(write=write)) as server:
        assert ask(judge(server))[0].text == "Of 1 and 2.\nVerdict: 1"
        assert server.headers[0]["Authorization"] == "Bearer 1"
    for key, expected in (("EMPTY77", "EMPTY77"), ("secret-8", "[key]")):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert judge(ChatServer(url="http://127.0.0.1:1/v1")).server.scrub(key) == expected


@pytest.mark.parametrize(
    "url",
    ["http://user:pw@127.0.0.1/v1", "http://127.0.0.1/v1?key=x", "ftp://127.0.0.1", "no url", "http://host:port/v1"],
)
def test_urls_that_hold_secrets_or_are_none_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as error:
        OpenAIJudge("model", url)
    assert "pw" not in str(error.value) and "key=x" not in str(error.value)


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
        with pytest.warns(UserWarning, match="refuses response_format: requests go on without") as warnings:
            assert [r.text for r in ask(one, 3)] == [reply] * 3
    assert seen == [(True, True), (True, False), (False, True), (False, True), (False, True)]
    assert len(warnings) == 1, "told once"
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


def _token(text: str, **alternatives: float) -> dict:
    top = [{"token": token, "logprob": math.log(p)} for token, p in alternatives.items()]
    return {"token": text, "top_logprobs": top}


def test_soft_labels_come_from_the_verdicts_token() -> None:
    # The first "1" and the tokens before are none of the verdict's; "t" begins "tie"; " 2" is the same verdict as "2".
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
    assert len(server.bodies) == 3, "nobody had to be asked again"


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


def test_soft_labels_reach_the_rows_in_their_order(tmp_path: Path) -> None:
    def more(body: dict) -> dict:
        sure = verdict(*captions(body))
        return {"logprobs": {"content": [_token("Verdict: "), _token(sure, **{"1": 0.5, "2": 0.5, sure: 0.8})]}}

    def write(body: dict) -> str:
        return f"Verdict: {verdict(*captions(body))}"

    with serving(ChatServer(write=write, more=more)) as server:
        pairs = dataset(tmp_path / "pairs", 6)
        Annotation(pairs, judge(server), Question(world="nethack")).run("llm")
    soft = pairs.soft_preferences("llm")
    assert soft is not None
    high, low = 0.8 / 1.3, 0.5 / 1.3
    np.testing.assert_allclose(soft, [[high, low, 0], [low, high, 0]] * 3, rtol=1e-5)


def test_half_a_surrogate_pair_in_the_models_words_is_no_trouble(tmp_path: Path) -> None:
    write = lambda body: "It depends \ud800" if len(body["messages"]) == 2 else "Verdict: 1"  # noqa: E731
    with serving(ChatServer(write=write)) as server:
        pairs = dataset(tmp_path / "pairs", 2)
        summary = Annotation(pairs, judge(server), Question(world="nethack")).run("llm")
    assert (summary.asked, summary.failed, summary.invalid) == (2, 0, 0)
    echoed = [body["messages"][2]["content"] for body in server.bodies if len(body["messages"]) > 2]
    assert echoed == ["It depends ?"] * 2


def error_of(code: object) -> dict:
    return {"error": {"message": "told inside", "code": code}}


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


def test_an_error_in_a_reply_of_status_200_that_nothing_mends_is_not_repeated() -> None:
    with serving(ChatServer(replace=lambda number: error_of(401))) as server:
        with pytest.raises(RunError, match="told inside"):
            ask(judge(server, concurrency=1))
        assert len(server.bodies) == 1
    with serving(ChatServer(replace=lambda number: error_of(400))) as server:
        assert "told inside" in str(ask(judge(server, soft_labels=False))[0].failure)
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
def test_what_can_be_no_number_of_tokens_counts_as_unknown(tmp_path: Path, count: object) -> None:
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


def test_many_answers_wait_for_the_disk_together() -> None:
    keeping = threading.Lock()
    kept, num_replies = 0, 0

    def keep() -> None:
        nonlocal kept
        assert keeping.acquire(blocking=False), "one at a time"
        before = num_replies
        time.sleep(0.02)
        kept += 1
        assert before <= num_replies
        keeping.release()

    def tell(request: Request, reply: Reply) -> None:
        nonlocal num_replies
        num_replies += 1

    question = Question(world="nethack")
    requests = [Request(n, question.conversation("a", "b", "line"), "defaultgoal") for n in range(320)]
    with serving(ChatServer()) as server:
        judge(server, timeout=20, concurrency=32).ask(requests, tell, keep)
    assert num_replies == 320 and 10 <= kept <= 80
