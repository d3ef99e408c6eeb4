"""Access control by the token in the printed address."""

import hashlib
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    # Files are shown as text; should markup get through, no script of its own would run.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that requires the token in the address, or the cookie that is set for it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        # Browsers send a cookie to every port of a host, so each instance has its own name.
        self._cookie = f"groundling-{hashlib.sha256(token.encode()).hexdigest()[:16]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        query = parse_qsl(scope["query_string"].decode("latin-1"))
        given = dict(query).get("token")
        if given is not None and self._is_valid(given):
            # The address, which may be copied or logged, loses its token.
            rest = urlencode([(key, value) for key, value in query if key != "token"])
            response = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            await response(scope, receive, send_guarded)
        elif self._is_valid(_cookie(self._cookie, Headers(scope=scope).get("cookie", ""))):
            await self._app(scope, receive, send_guarded)
        else:
            text = "This page needs the token of the address that `groundling ui` printed: open that address.\n"
            await PlainTextResponse(text, 403)(scope, receive, send_guarded)

    def _is_valid(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())


def _cookie(name: str, header: str) -> str:
    try:
        cookies = SimpleCookie(header)
    except CookieError:
        return ""
    return cookies[name].value if name in cookies else ""
