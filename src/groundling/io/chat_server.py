"""Requests to an OpenAI-compatible server that may be slow, busy, broken or hostile."""

import asyncio
import email.utils
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from groundling.errors import ConfigError, RunError, importing

if TYPE_CHECKING:
    import httpx2

_LONGEST_WAIT = 300.0  # Maximum number of seconds to wait if a reply has ``Retry-After``
_LONGEST_CONNECT = 10.0  # Maximum number of seconds to establish a connection
_EXCERPT = 200  # Maximum number of characters quoted from a server's message in an error
_READ = 2**16  # Maximum number of bytes of a reply that are decoded for an excerpt
_SHORTEST_SECRET = 8  # Minimum length of a key to redact; shorter ones are placeholders that may be ordinary words


class RequestFailed(Exception):
    """A request failed; others may succeed."""


class RequestRefused(RequestFailed):
    """The server rejects the request (400, 413, 422), and would reject it again."""


def check_address(base_url: str = "http://127.0.0.1:8000/v1", api_key_env: str = "OPENAI_API_KEY") -> None:
    """Raise `ConfigError` for an invalid URL, a URL with a secret, or an invalid variable name (possibly the key)."""
    if api_key_env not in os.environ and not re.fullmatch("[A-Z_][A-Z0-9_]*", api_key_env):
        raise ConfigError(
            "api_key_env must be the name of an environment variable that contains the key, such as OPENAI_API_KEY"
        )
    try:
        parts = urlsplit(base_url)
    except ValueError:  # a bracket is not closed; the URL is not shown, since it may contain a secret
        raise ConfigError("base_url must be a URL such as http://127.0.0.1:8000/v1: check its brackets") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"base_url contains a user, password or query: remove it, and put the key in {api_key_env}")
    try:
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is invalid
        fits = False
    if not fits:
        raise ConfigError(f"base_url must be a URL such as http://127.0.0.1:8000/v1, got {base_url!r}")


@dataclass
class ChatServer:
    """A client for a chat server, as an async context manager; `complete` may run concurrently.

    Args:
        base_url: URL that ends with ``/v1``.
        api_key_env: Environment variable with the API key; the key itself is not stored anywhere else.
        timeout: Seconds after which a request fails, including the time to read the whole reply.
        max_retries: Retries after 408, 409, 425, 429, 5xx (as the reply's status or in its JSON), a timeout, a lost
            connection or an invalid reply.
        backoff: Seconds before the first retry, doubled for each later one up to a minute. Jitter shortens a wait by
            up to half, and a ``Retry-After`` header can lengthen it.
        max_reply_bytes: Maximum size of a reply; a longer one is invalid.
    """

    base_url: str
    api_key_env: str = "OPENAI_API_KEY"
    timeout: float = 120.0
    max_retries: int = 6
    backoff: float = 1.0
    max_reply_bytes: int = 4 * 2**20

    def __post_init__(self) -> None:
        for name, allowed in (
            ("timeout", self.timeout > 0),
            ("max_retries", self.max_retries >= 0),
            ("backoff", self.backoff >= 0),
            ("max_reply_bytes", self.max_reply_bytes > 0),
        ):
            if not allowed:
                raise ConfigError(f"{name} must not be {getattr(self, name)}: use a larger number")
        check_address(self.base_url, self.api_key_env)
        self._key = os.environ.get(self.api_key_env, "").strip()
        if not all("!" <= c <= "~" for c in self._key):  # the HTTP client's message would show the key
            raise ConfigError(f"the API key in {self.api_key_env} contains spaces or other invalid characters: fix it")
        # JSON and Python's repr put a backslash before some characters.
        escaped = "".join(rf"\\?{re.escape(c)}" for c in self._key)
        self._secret = re.compile(escaped) if len(self._key) >= _SHORTEST_SECRET else None

    async def __aenter__(self) -> Self:
        with importing("httpx2", "judge"):
            import httpx2
        self._httpx, self._certificates = httpx2, httpx2.create_ssl_context()
        self._idle: list[httpx2.AsyncClient] = []
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._idle:
            await client.aclose()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator["httpx2.AsyncClient"]:
        """Borrow a client with one connection; a shared client would scan all connections for each request."""
        if self._idle:
            client = self._idle.pop()
        else:
            client = self._httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=self._httpx.Timeout(self.timeout, connect=min(self.timeout, _LONGEST_CONNECT)),
                verify=self._certificates,
            )
        try:
            yield client
        finally:
            self._idle.append(client)

    def scrub(self, text: str) -> str:
        """Remove the API key from text that a server sent."""
        return self._secret.sub("[key]", text) if self._secret else text

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post ``body`` to ``chat/completions``; return the reply's JSON object (see `text_of`).

        Raises `RequestRefused`, `RequestFailed` after all retries, or `RunError` if no request can succeed because
        there is no connection after all retries, access is denied, or the model does not exist.
        """
        for attempt in range(self.max_retries + 1):
            try:
                status, headers, content = await self._post(body)
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
                problem, lost, wait = f"no connection ({self._excerpt(str(error)) or 'timeout'})", True, None
            except (self._httpx.TimeoutException, TimeoutError):
                problem, lost, wait = f"no reply within {self.timeout:g} s", False, None
            except (self._httpx.RequestError, _TooLong) as error:
                problem = f"{type(error).__name__.lstrip('_')}: {self._excerpt(str(error))}"
                lost, wait = False, None
            else:
                try:
                    reply = json.loads(content)
                except (ValueError, RecursionError):
                    reply = {}
                reply = reply if isinstance(reply, dict) else {}
                code = _error_status(reply) if status == 200 else status
                if code == 200:
                    if text_of(reply) is not None:
                        return reply
                    problem = f"a reply without choices[0].message.content in JSON: {self._excerpt(content)}"
                else:
                    problem = f"HTTP {status}: {self._excerpt(content)}"
                    self._check_status(code, problem)
                lost, wait = False, _retry_after(headers)
            if attempt < self.max_retries:
                pause = min(60.0, self.backoff * 2**attempt) * random.uniform(0.5, 1.0)  # spreads concurrent requests
                await asyncio.sleep(max(pause, min(wait or 0.0, _LONGEST_WAIT)))
        if lost:
            raise RunError(f"{self.base_url}: {problem} ({self.max_retries + 1} attempts); is the server running?")
        raise RequestFailed(problem)

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        # A model's output may contain half a surrogate pair, which UTF-8 cannot encode.
        sent = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        head = {"Content-Type": "application/json"}
        # The client's own timeouts apply to single reads, so a server could keep sending single bytes forever.
        async with (
            asyncio.timeout(self.timeout),
            self._client() as client,
            client.stream("POST", url, content=sent, headers=head) as response,
        ):
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > self.max_reply_bytes:
                    raise _TooLong(f"more than {self.max_reply_bytes:,} bytes")
            return response.status_code, response.headers, bytes(content)

    def _check_status(self, status: int, problem: str) -> None:
        """Raise an error if retrying the request cannot help."""
        if status in (400, 413, 422):
            raise RequestRefused(problem)
        if status in (401, 403):
            key = "the API key in" if self._key else "no API key in the environment variable"
            raise RunError(f"{self.base_url}: {problem} ({key} {self.api_key_env})")
        if status in (408, 409, 425, 429) or status >= 500:
            return
        raise RunError(f"{self.base_url}: {problem}: check base_url and model")

    def _excerpt(self, said: bytes | str) -> str:
        """Return the start of a message from the server or the client, as one line without the key."""
        text = said if isinstance(said, str) else said[:_READ].decode("utf-8", "replace")
        # The key is removed before the text is cut, so that no part of it remains.
        text = self.scrub(text)
        if len(said) > _READ:
            # The first cut may have left the start of the key, escaped or not.
            text = text[: -2 * len(self._key) or None]
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_EXCERPT]


class _TooLong(Exception):
    """A reply exceeds its maximum size."""


def text_of(reply: Mapping[str, Any]) -> str | None:
    """Return the text of a reply (null becomes "", parts are joined), or None if the reply is malformed."""
    try:
        content = reply["choices"][0]["message"]["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)  # image parts have no text
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return "" if content is None else content if isinstance(content, str) else None


def _error_status(reply: Mapping[str, Any]) -> int:
    """Return the HTTP status in a reply with status 200, since gateways may forward server errors as JSON."""
    error = reply.get("error")
    if not error or "choices" in reply:
        return 200
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait according to ``Retry-After``, which may also be a date."""
    text = headers.get("retry-after", "").strip()
    with suppress(ValueError):
        return max(0.0, float(text))
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, IndexError):
        return None
