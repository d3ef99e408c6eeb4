"""Sockets and middleware for servers."""

import secrets
import socket
from collections.abc import Set
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from groundling.errors import RunError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MOST_BYTES = 1_000_000  # Maximum size of a request or message


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port (0: any free port); raise `RunError` if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which delays small messages by 40 ms, only if the protocol is specified.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise RunError(f"cannot use port {port} on {host} ({error}): choose a different one with --port") from error
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the URL of a server that listens on a socket."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AccessControl:
    """Middleware that requires a token, limits the size of requests, and rejects requests from other sites' pages.

    Args:
        token: If set, requests must have the header ``Authorization: Bearer TOKEN``.
        hosts: If set, the only allowed values of the headers Host and Origin, without ports. Pages of other sites can
            send requests to a loopback server, but browsers do not let them choose these headers.
    """

    def __init__(self, app: ASGIApp, token: str | None = None, hosts: Set[str] | None = None) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] == "lifespan" else self._refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # answered with status 403
        else:
            status, reason = refusal
            await PlainTextResponse(f"{reason}\n", status)(scope, receive, send)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        """Return the status code and the reason for refusing a request, or None if it is allowed."""
        places = [f"//{headers.get('host', '')}", *headers.getlist("origin")]
        if self._hosts is not None and not {*map(_host_of, places)} <= self._hosts:
            return 403, f"this server only accepts requests to {', '.join(sorted(self._hosts))}"
        given, expected = headers.get("authorization", ""), f"Bearer {self._token}"
        if self._token is not None and not secrets.compare_digest(given.encode(), expected.encode()):
            return 401, "this server requires a token: send the header Authorization: Bearer TOKEN"
        if "transfer-encoding" in headers:
            return 411, "chunked requests are not supported: send the header Content-Length"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BYTES:
            return 413, f"requests may have at most {MOST_BYTES:,} bytes, got {length:.20}"
        return None


def _host_of(url: str) -> str | None:
    """Return the host of a URL, or None for other strings, such as the origin ``null`` of a sandboxed page."""
    with suppress(ValueError):  # e.g. for an unclosed bracket
        return urlsplit(url).hostname
    return None
