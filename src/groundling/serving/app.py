"""The HTTP application: access, limits, and replies in OpenAI's format."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from groundling.errors import GroundlingError
from groundling.serving.requests import Request, parse
from groundling.serving.served_policy import ServedPolicy
from groundling.serving.writer import Answer, Writer

_MAX_BODY = 2**20  # Bytes of a request
_MAX_IN_PROGRESS = 256  # Requests
_LOWEST = -9999.0  # Replaces -inf, which JSON cannot represent, as in vLLM


def make_app(policy: ServedPolicy, name: str, token: str) -> Starlette:
    """Create the application that serves a policy as model ``name`` to clients that send ``token``."""
    views = _Views(policy, name)
    routes = [
        Route("/health", views.health),
        Route("/v1/models", views.models),
        Route("/v1/chat/completions", views.complete, methods=["POST"]),
        Route("/v1/completions", views.complete, methods=["POST"]),
    ]
    errors: Any = dict.fromkeys((GroundlingError, HTTPException, Exception), _failed)
    guard = Middleware(_Guard, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors, lifespan=views.lifespan)


class _Guard:
    """Middleware that requires the token, except for ``/health``."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        open_to_all = scope["type"] != "http" or scope["path"] == "/health"
        if not open_to_all and not secrets.compare_digest(given, self._expected):
            error = _error(401, "send the server's token in the header 'Authorization: Bearer TOKEN'")
            return await error(scope, receive, send)
        return await self._app(scope, receive, send)


class _Views:
    def __init__(self, policy: ServedPolicy, name: str) -> None:
        self._name, self._in_progress, self._writer = name, 0, Writer(policy)
        self._decode = policy.lm.tokenizer.decode

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self._writer.close()

    async def health(self, http: HttpRequest) -> Response:
        return JSONResponse({})

    async def models(self, http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def complete(self, http: HttpRequest) -> Response:
        is_chat = http.url.path.endswith("/chat/completions")
        request = parse(await _body(http), is_chat)
        if request.model not in (None, self._name):
            raise HTTPException(404, f"there is no model {request.model!r:.80}: this server has {self._name!r}")
        if self._in_progress >= _MAX_IN_PROGRESS:
            raise HTTPException(503, f"{_MAX_IN_PROGRESS} requests are in progress: try again later")
        self._in_progress += 1
        answers = asyncio.gather(*map(asyncio.wrap_future, self._writer.submit(request)))
        leaving = asyncio.ensure_future(_left(http))
        try:
            await asyncio.wait({answers, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                return Response(status_code=499)  # the client left
            return JSONResponse(self._reply(request, answers.result(), is_chat))
        finally:
            self._in_progress -= 1
            leaving.cancel()
            answers.cancel()

    def _reply(self, request: Request, answers: list[Answer], is_chat: bool) -> dict[str, Any]:
        choices, ids = [], request.return_token_ids
        for index, answer in enumerate(answers):
            text = {"message": {"role": "assistant", "content": answer.text}} if is_chat else {"text": answer.text}
            choice = {"index": index, **text, "finish_reason": answer.finish, "logprobs": None}
            if request.num_top is not None:
                choice["logprobs"] = self._chat_log_probs(answer) if is_chat else self._log_probs(answer)
            if answer.choice_log_probs is not None:
                choice["choice_logprobs"] = [max(one, _LOWEST) for one in answer.choice_log_probs]
            choice |= {"token_ids": answer.ids} if ids else {}
            choice |= {"prompt_token_ids": answer.prompt} if ids and not is_chat else {}
            choices.append(choice)
        read, written = (
            sum(map(len, x)) for x in ([a.prompt for a in answers[:: request.n]], [a.ids for a in answers])
        )
        return {
            "id": secrets.token_hex(12),
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": self._name,
            "choices": choices,
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
            **({"prompt_token_ids": answers[0].prompt} if ids and is_chat else {}),
        }

    def _chat_log_probs(self, answer: Answer) -> dict[str, Any]:
        def entry(id: int, log_prob: float) -> dict[str, Any]:
            text = self._decode([id])
            return {"token": text, "logprob": max(log_prob, _LOWEST), "bytes": list(text.encode())}

        tokens = zip(answer.ids, answer.log_probs, answer.top, strict=True)
        return {"content": [{**entry(id, x), "top_logprobs": [entry(*one) for one in top]} for id, x, top in tokens]}

    def _log_probs(self, answer: Answer) -> dict[str, Any]:
        texts = [self._decode([id]) for id in answer.ids]
        return {
            "tokens": texts,
            "token_logprobs": [max(one, _LOWEST) for one in answer.log_probs],
            "top_logprobs": [{self._decode([id]): max(x, _LOWEST) for id, x in top} for top in answer.top],
            "text_offset": list(itertools.accumulate(map(len, texts[:-1]), initial=0)),
        }


async def _body(http: HttpRequest) -> bytes:
    """Read a request's body; raise `HTTPException` if it is too large."""
    body = bytearray()
    async for part in http.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise HTTPException(413, f"the request is larger than {_MAX_BODY >> 20} MiB: send a smaller one")
    return bytes(body)


async def _left(http: HttpRequest) -> None:
    """Wait until the client disconnects."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _failed(http: HttpRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail)
    line = " ".join(str(error).split())
    return _error(400, line) if isinstance(error, GroundlingError) else _error(500, f"{type(error).__name__}: {line}")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message[:1000], "type": "error", "code": status}}, status)
