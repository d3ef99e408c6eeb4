"""The API key is sent to the server, and does not appear anywhere else."""

import json
import logging
from pathlib import Path

import pytest

from groundling.errors import ConfigError, RunError
from groundling.judges import Annotation, OpenAIJudge, Question
from groundling.judges.online.reward import online_judge
from tests.judges.asking.chat_server import ChatServer, captions, serving, verdict
from tests.judges.asking.server_judge import ask, dataset, judge

KEY = "sk-very-secret-0123456789"


def test_the_key_is_sent_and_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    # The server repeats the key in the model's text and in its errors.
    write = lambda body: f"I was given {KEY}.\nVerdict: {verdict(*captions(body))}"  # noqa: E731
    with serving(ChatServer(write=write)) as server:
        pairs = dataset(tmp_path / "pairs", 4)
        annotation = Annotation(pairs, judge(server, api_key_env="MY_KEY"), Question(world="nethack"))
        summary = annotation.run("llm")
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    with serving(ChatServer(treat=lambda number: "401")) as server, pytest.raises(RunError) as error:
        ask(judge(server, api_key_env="MY_KEY"))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"I was given [key]." in written
    for text in (caplog.text, str(error.value), repr(summary), written.decode("latin-1")):
        assert KEY not in text
    assert "Bearer [key]" in str(error.value) and "the API key in MY_KEY" in str(error.value)
    assert KEY not in repr(vars(annotation.judge)["server"]), "the client's repr shows its fields"


ODD_KEY = "sk/very'secret\\01234"
"""A key in which JSON or Python's repr escape characters."""


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
def test_an_invalid_key_is_not_repeated(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="the API key in MY_KEY contains spaces or other") as error:
        OpenAIJudge("model", api_key_env="MY_KEY")
    assert KEY not in str(error.value)


@pytest.mark.parametrize("key", [KEY, "gsk_0123456789abcdef", "0123ABCDEF", ""])
def test_a_key_in_place_of_its_variable_is_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match="as OPENAI_API_KEY") as error:
        OpenAIJudge("model", "no url", api_key_env=key)
    assert "\n" not in str(error.value) and (not key or key not in str(error.value))


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
def test_urls_with_secrets_or_without_a_host_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as error:
        OpenAIJudge("model", url)
    assert "pw" not in str(error.value) and "key=x" not in str(error.value)
