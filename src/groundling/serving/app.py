"""The HTTP application, which limits the number of requests in progress and replies in OpenAI's format."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Set
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from groundling.errors import GroundlingError
from groundling.serving.http import AccessControl
from groundling.serving.requests import CompletionRequest, parse
from groundling.serving.writer import Completion, Writer

_MAX_IN_PROGRESS = 256  # Maximum number of requests in progress
_LOWEST = -9999.0  # Replacement for -inf, which JSON cannot represent, as in vLLM


def make_app(writer: Writer, name: str, token: str, hosts: Set[str] | None = None) -> Starlette:
    """Create the application that serves a writer as model ``name``; for the other arguments, see `AccessControl`."""
    views = _Endpoints(writer, name)
    routes = [
        Route("/health", views.health),
        Route("/v1/models", views.models),
        Route("/v1/chat/completions", views.complete, methods=["POST"]),
        Route("/v1/completions", views.complete, methods=["POST"]),
    ]
    errors: Any = dict.fromkeys((GroundlingError, HTTPException, Exception), _failed)
    guard = Middleware(AccessControl, token=token, hosts=hosts)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


class _Endpoints:
    def __init__(self, writer: Writer, name: str) -> None:
        self._writer, self._name, self._in_progress = writer, name, 0
        self._decode = writer.lm.tokenizer.decode

    async def health(self, http: HttpRequest) -> Response:
        return JSONResponse({})

    async def models(self, http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def complete(self, http: HttpRequest) -> Response:
        is_chat = http.url.path.endswith("/chat/completions")
        request = parse(await http.body(), is_chat)
        if request.model not in (None, self._name):
            raise HTTPException(404, f"there is no model {request.model!r:.80}: this server serves {self._name!r}")
        if self._in_progress >= _MAX_IN_PROGRESS:
            raise HTTPException(503, f"{_MAX_IN_PROGRESS} requests are in progress: try again later")
        self._in_progress += 1
        parts = [asyncio.wrap_future(part) for part in self._writer.submit(request)]
        answers, leaving = asyncio.gather(*parts), asyncio.ensure_future(_left(http))
        both: set[asyncio.Future[Any]] = {answers, leaving}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                return Response(status_code=499)  # the client disconnected
            return JSONResponse(self._reply(request, answers.result(), is_chat))
        finally:
            self._in_progress -= 1
            leaving.cancel()
            for part in parts:
                part.cancel()

    def _reply(self, request: CompletionRequest, answers: list[Completion], is_chat: bool) -> dict[str, Any]:
        choices = []
        for index, answer in enumerate(answers):
            text = {"message": {"role": "assistant", "content": answer.text}} if is_chat else {"text": answer.text}
            choice: dict[str, Any] = {"index": index, **text, "finish_reason": answer.finish, "logprobs": None}
            if request.num_top is not None:
                choice["logprobs"] = self._chat_log_probs(answer) if is_chat else self._log_probs(answer)
            if answer.choice_log_probs is not None:
                choice["choice_logprobs"] = [max(one, _LOWEST) for one in answer.choice_log_probs]
            if request.return_token_ids:
                choice |= {"token_ids": answer.ids, "prompt_token_ids": answer.prompt}
            choices.append(choice)
        read, written = sum(len(one.prompt) for one in answers[:: request.n]), sum(len(one.ids) for one in answers)
        reply = {
            "id": secrets.token_hex(12),
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": self._name,
            "choices": choices,
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }
        if is_chat and request.return_token_ids:
            reply["prompt_token_ids"] = choices[0].pop("prompt_token_ids")
        return reply

    def _chat_log_probs(self, answer: Completion) -> dict[str, Any]:
        def entry(id: int, log_prob: float) -> dict[str, Any]:
            text = self._decode([id])
            return {"token": text, "logprob": max(log_prob, _LOWEST), "bytes": list(text.encode())}

        tokens = zip(answer.ids, answer.log_probs, answer.top, strict=True)
        return {"content": [{**entry(id, x), "top_logprobs": [entry(*one) for one in top]} for id, x, top in tokens]}

    def _log_probs(self, answer: Completion) -> dict[str, Any]:
        texts = [self._decode([id]) for id in answer.ids]
        return {
            "tokens": texts,
            "token_logprobs": [max(one, _LOWEST) for one in answer.log_probs],
            "top_logprobs": [{self._decode([id]): max(x, _LOWEST) for id, x in top} for top in answer.top],
            "text_offset": list(itertools.accumulate(map(len, texts[:-1]), initial=0)),
        }


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
