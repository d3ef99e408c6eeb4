"""Access control of servers, and the sockets on which they listen."""

import asyncio
import socket
from typing import Any

import pytest

from groundling.errors import RunError
from groundling.serving.http import LOOPBACK, AccessControl, address_of, listen


def _ask(kind: str = "http", token: str | None = None, hosts: Any = LOOPBACK, **headers: str) -> list[Any]:
    """Return the reply to a request with these headers; ``["passed"]`` if access is granted."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sent.append("passed")

    async def send(message: Any) -> None:
        sent.append(message.get("status", message.get("code")))

    given = {"host": "localhost:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in given.items()]}
    asyncio.run(AccessControl(app, token, hosts)(scope, None, send))  # type: ignore[arg-type]
    return [one for one in sent if one is not None]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("status", "settings"),
    [
        ("passed", {}),
        ("passed", {"host": "[::1]:8000"}),
        ("passed", {"origin": "http://localhost:8000"}),
        ("passed", {"hosts": None, "host": "world.example"}),
        (403, {"host": "world.example"}),
        (403, {"host": ""}),
        (403, {"host": "[::1"}),
        (403, {"origin": "https://world.example"}),
        (403, {"origin": "null"}),  # of a page in a sandboxed frame, which any site can show
        (403, {"origin": "file://"}),
        (403, {"origin": "http://["}),
        ("passed", {"token": "abc", "authorization": "Bearer abc"}),
        (401, {"token": "abc"}),
        (401, {"token": "abc", "authorization": "Bearer abcd"}),
        (401, {"token": "abc", "authorization": "Bearer \N{SNOWMAN}"}),
        (413, {"content_length": "1000001"}),
        (413, {"content_length": "-1"}),
        (413, {"content_length": "9" * 5000}),
        (411, {"transfer_encoding": "chunked"}),
        ("passed", {"content_length": "1000000"}),
    ],
)
def test_guard(kind: str, status: int | str, settings: dict[str, Any]) -> None:
    refused = 1008 if kind == "websocket" else status
    assert _ask(kind, **settings) == [status if status == "passed" else refused]


def test_the_servers_own_messages_pass() -> None:
    assert _ask("lifespan", token="abc", host="world.example") == ["passed"]


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_the_address_of_a_socket(host: str, address: str) -> None:
    try:
        listening = listen(host, 0)
    except RunError:
        pytest.skip(f"this machine has no {host}")
    with listening:
        assert address_of(listening) == f"{address}{listening.getsockname()[1]}"


def test_a_used_port_is_reported() -> None:
    with listen("127.0.0.1", 0) as one:
        assert one.proto == socket.IPPROTO_TCP  # otherwise, asyncio delays small messages
        port = one.getsockname()[1]
        with pytest.raises(RunError, match=f"cannot use port {port} on 127.0.0.1 .*--port"):
            listen("127.0.0.1", port)
