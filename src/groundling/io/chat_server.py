"""Requests to an OpenAI-compatible server that may be slow, busy, broken or hostile."""

import asyncio
import email.utils
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from groundling.errors import ConfigError, RunError

if TYPE_CHECKING:
    import httpx2

_LONGEST_WAIT = 300.0
"""Seconds: a server that asks for more patience is taken at this."""
_LONGEST_CONNECT = 10.0
"""Seconds in which a server must take a connection."""
_EXCERPT = 200
"""Characters of a server's words that a message repeats."""
_READ = 2**16
"""Bytes of a reply in which these are looked for."""
_SHORTEST_SECRET = 8
"""Characters: a shorter key is a dummy for a server that checks none, and may well be a word of a reply ("1")."""


class RequestFailed(Exception):
    """One request has no answer; others may."""


class RequestRefused(RequestFailed):
    """The server understands the request and does not take it (400, 413, 422): the same one would fare no better."""


def check_address(base_url: str = "http://127.0.0.1:8000/v1", api_key_env: str = "OPENAI_API_KEY") -> None:
    """Check where a server is and what names its key, before either is written anywhere.

    Raises:
        ConfigError: the URL is none, or holds a secret; or the variable's name is none, as the key itself would be.
    """
    if api_key_env not in os.environ and not re.fullmatch("[A-Z_][A-Z0-9_]*", api_key_env):
        # It may be the key itself.
        raise ConfigError(
            "api_key_env is no name of an environment variable: expected capital letters, digits and _, as in "
            "OPENAI_API_KEY; put the key into such a variable and give the variable's name"
        )
    parts = urlsplit(base_url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "base_url holds a user, password or query: give a bare URL, and the key in the environment variable "
            f"{api_key_env}"
        )
    try:
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        fits = False
    if not fits:
        raise ConfigError(f"base_url {base_url!r}: expected something like http://127.0.0.1:8000/v1")


@dataclass
class ChatServer:
    """A client, an async context manager; `complete` may run many times at once.

    Args:
        base_url: Up to and with ``/v1``.
        api_key_env: The environment variable with the API key, by its name in capitals (or as it is, if it is set);
            the key itself stands nowhere else.
        timeout: Seconds for one request, its reply read to the end.
        max_retries: How often a request is made again after 408, 409, 425, 429, 5xx (told as the reply's status or in
            its JSON), a time-out, a lost connection or a reply that is none.
        backoff: Seconds before the first such repetition; twice as long before each further one, up to a minute,
            and then by chance between half of it and all of it. A ``Retry-After`` lengthens it.
        max_reply_bytes: A longer reply is cut off and counts as none.

    Raises:
        ConfigError: the URL is none, or holds a secret; or the key is none, or its variable's name; or a number is
            out of bounds.
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
                raise ConfigError(f"{name} must not be {getattr(self, name)}: give a greater number")
        check_address(self.base_url, self.api_key_env)
        self._key = os.environ.get(self.api_key_env, "").strip()
        if not all("!" <= c <= "~" for c in self._key):  # the client's own message would tell the key
            raise ConfigError(
                f"the API key in {self.api_key_env} holds characters that no key has: set that variable again"
            )
        # JSON and Python's repr put a backslash before some characters.
        escaped = "".join(rf"\\?{re.escape(c)}" for c in self._key)
        self._secret = re.compile(escaped) if len(self._key) >= _SHORTEST_SECRET else None

    async def __aenter__(self) -> Self:
        try:
            import httpx2
        except ImportError:
            raise ConfigError("asking a server needs httpx2: pip install 'groundling[judge]'") from None
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
        """A client for one request at a time, with its connection: one for all would look at each of its connections
        whenever a request begins or ends, which at 64 at once takes longer than all else that a request does.
        """
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
        """A text without the API key, should a server repeat it; a key of less than 8 characters is no secret."""
        return self._secret.sub("[key]", text) if self._secret else text

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post ``body`` to ``chat/completions``; the reply's JSON object, of which `text_of` gives the words.

        Raises:
            RequestRefused: the server does not take this request.
            RequestFailed: no answer after all repetitions.
            RunError: no request can succeed (no connection after all repetitions, no access, no such model).
        """
        for attempt in range(self.max_retries + 1):
            try:
                status, headers, content = await self._post(body)
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
                problem, lost, wait = f"no connection ({self._excerpt(str(error)) or 'time-out'})", True, None
            except (self._httpx.TimeoutException, TimeoutError):
                problem, lost, wait = f"no reply within {self.timeout:g} s", False, None
            except (self._httpx.RequestError, _TooLong) as error:
                # The client quotes what the server sent.
                problem = f"{type(error).__name__.lstrip('_')}: {self._excerpt(str(error))}"
                lost, wait = False, None
            else:
                reply = _object(content)
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
                await asyncio.sleep(self._pause(attempt, wait))
        if lost:
            raise RunError(
                f"{self.base_url}: {problem}, {self.max_retries + 1} times: is the server running?"
            )
        raise RequestFailed(problem)

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        # A model's words are sent back to it, and may hold half a surrogate pair, which no UTF-8 can tell.
        sent = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        head = {"Content-Type": "application/json"}
        # The client's own timeouts are for each piece; a server that sends a byte now and then would outwit them.
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
        """Raise what a repetition would not mend."""
        if status in (400, 413, 422):
            raise RequestRefused(problem)
        if status in (401, 403):
            key = "the API key in" if self._key else "no API key in the environment variable"
            raise RunError(f"{self.base_url}: {problem} ({key} {self.api_key_env})")
        if status in (408, 409, 425, 429) or status >= 500:
            return
        raise RunError(f"{self.base_url}: {problem}: check base_url and model")

    def _excerpt(self, said: bytes | str) -> str:
        """The beginning of what a server or the client said, for a message: one line without the key."""
        text = said if isinstance(said, str) else said[:_READ].decode("utf-8", "replace")
        # The key is taken out before the text is cut, lest half of it remain.
        text = self.scrub(text)
        if len(said) > _READ:
            # This cut came before, and may have left the beginning of the key, escaped or not.
            text = text[: -2 * len(self._key) or None]
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_EXCERPT]

    def _pause(self, attempt: int, wait: float | None) -> float:
        """Seconds before the next repetition; jitter keeps many requests from coming back together."""
        longest = min(60.0, self.backoff * 2**attempt)
        return max(longest * random.uniform(0.5, 1.0), min(wait or 0.0, _LONGEST_WAIT))


class _TooLong(Exception):
    """A reply of more bytes than allowed."""


def _object(content: bytes) -> dict[str, Any]:
    """A reply's JSON object, empty if it is none."""
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return reply if isinstance(reply, dict) else {}


def text_of(reply: Mapping[str, Any]) -> str | None:
    """A model's words (null are none, parts are joined); None where a reply is of another shape."""
    try:
        content = reply["choices"][0]["message"]["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)  # pictures have none
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return "" if content is None else content if isinstance(content, str) else None


def _error_status(reply: Mapping[str, Any]) -> int:
    """The HTTP status that a reply of status 200 means: gateways pass on errors of what is behind them as JSON."""
    error = reply.get("error")
    if not error or "choices" in reply:
        return 200
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from a header that holds them or a date."""
    text = headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, IndexError):
        return None
