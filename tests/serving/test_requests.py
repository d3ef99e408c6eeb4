"""Rejected requests produce one line each, and the server answers the next request."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.serving.conftest import TOKEN, Server

_USER = [{"role": "user", "content": "go"}]


@pytest.fixture(autouse=True)
def _answers_afterwards(server: Server) -> Any:
    yield
    assert server.complete(prompt="You see", max_tokens=1)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"messages": [', "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "Invalid JSON"),
        ({"messages": _USER, "stream": True}, "stream=True is not supported: remove it"),
        ({"messages": _USER, "tools": [{"type": "function"}]}, "tools=[{'type': 'function'}] is not supported"),
        ({"messages": _USER, "temprature": 1}, "temprature: Extra inputs are not permitted"),
        ({"messages": _USER, "temperature": float("nan")}, "temperature: Input should be a finite number"),
        ({"messages": _USER, "temperature": -1}, "temperature: Input should be greater than or equal to 0"),
        ({"messages": _USER, "n": 65}, "n=65 requests more than 64 texts"),
        ({"messages": _USER, "n": True}, "n: Input should be a valid integer"),
        ({"messages": _USER, "max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"messages": _USER, "top_logprobs": 2}, "top_logprobs has no effect"),
        ({"messages": _USER, "guided_choice": ["a"], "stop": "b"}, "stop has no effect"),
        ({"messages": _USER, "guided_choice": []}, "at least 1 item"),
        ({"messages": _USER, "guided_choice": ["a"] * 1025}, "at most 1024 items"),
        ({"messages": [*_USER, *_USER]}, "messages must be"),
        ({"messages": [{"role": "assistant", "content": "go"}]}, "messages must be"),
        ({"messages": [{"role": "system", "content": "go"}]}, "messages must be"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages.0.content"),
        ({"prompt": "go"}, "send messages to /v1/chat/completions"),
        ({"messages": [{"role": "user", "content": "go " * 1100}]}, "tokens, but the limit is 1024"),
        ({"messages": _USER, "guided_choice": ["go " * 1023]}, "this model has room for"),
    ],
)
def test_invalid_chat_requests(server: Server, body: Any, says: str) -> None:
    status, reply = server.post("/chat/completions", body)
    assert status == 400 and says in reply["error"]["message"] and "\n" not in reply["error"]["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": [1, 5000]}, "token id 5000"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"messages": _USER}, "send messages to /v1/chat/completions"),
    ],
)
def test_invalid_completion_requests(server: Server, body: Any, says: str) -> None:
    status, reply = server.post("/completions", body)
    assert status == 400 and says in reply["error"]["message"]


def test_an_empty_prompt_is_the_start_of_a_text(server: Server) -> None:
    assert [one["finish_reason"] for one in server.complete(prompt="", max_tokens=1)["choices"]] == ["length"]


def test_access_and_addresses(server: Server) -> None:
    body = {"prompt": "go", "model": "another"}
    for token in ("", "another", TOKEN[:-1], "ü"):
        assert server.post("/completions", body, token)[0] == 401
    status, reply = server.post("/completions", body)
    assert status == 404 and "there is no model 'another'" in reply["error"]["message"]
    assert server.post("/nothing", body)[0] == 404
    assert server.post("/models", None)[1]["data"][0]["id"] == server.name


def test_a_megabyte_is_refused_before_it_is_read(server: Server) -> None:
    with suppress(OSError):  # the server may close the connection while the rest is being sent
        assert server.post("/completions", {"prompt": "x" * 10**6})[0] == 413
    status, reply = server.post("/completions", {"prompt": "x" * (10**6 - 100)})
    assert status == 400 and "characters, too many for a limit of 1024 tokens" in reply["error"]["message"]


def test_the_work_of_a_client_that_leaves_is_dropped(server: Server) -> None:
    body = json.dumps({"messages": _USER, "n": 64, "temperature": 100}).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.2)
    begun = time.monotonic()
    server.complete(prompt="You see", max_tokens=1)
    assert time.monotonic() - begun < 5  # 64 texts of 1,000 tokens take longer


def test_twenty_clients_at_once(server: Server) -> None:
    def ask(number: int) -> dict[str, Any]:
        more = {"guided_choice": ["go", "wait", "stay"][: 1 + number % 3]} if number % 2 else {"max_tokens": 5}
        return server.complete(messages=_USER, seed=number, **more)

    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(ask, range(20)))
    assert len({reply["id"] for reply in replies}) == 20
    for number, reply in enumerate(replies):
        assert len(reply["choices"][0].get("choice_logprobs", [])) == (1 + number % 3 if number % 2 else 0)
