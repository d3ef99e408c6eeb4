"""Language models as judges, on an OpenAI-compatible server (vLLM, llama.cpp, hosted) or in this process."""

import asyncio
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import Annotated, Any

from groundling.errors import RunError, warn_caller
from groundling.fields import CommandLineOnly, Ge, Gt, Le, Private
from groundling.io.chat_server import ChatServer, RequestFailed, RequestRefused, text_of
from groundling.judges.asking.judge import Judge, OnReply, Reply, Request, judges, parse
from groundling.judges.asking.questions import WORDS, AnswerFormat, Message, Question
from groundling.judges.preferences.store import token_count

_EXPECTED_TOKENS = {"line": 400, "json": 200, "choice": 1, "motif": 400}
_EXPECTED_SPEED = 30.0  # tokens per second of one request, for the first estimate
_LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 20}
_MAX_FAILURES = 20  # consecutive failed requests after which the run stops
_MAX_TOKENS = 10**9  # higher counts for one request are ignored as server errors


def _constraint(answer: AnswerFormat, words: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a request that asks a server to enforce the answer format; by default {}."""
    if answer == "choice":
        return {"structured_outputs": {"choice": list(words)}}  # for vLLM; ignored by llama.cpp and Ollama
    if answer != "json":
        return {}
    schema = {
        "type": "object",
        "properties": {"analysis": {"type": "string"}, "verdict": {"type": "string", "enum": list(words)}},
        "required": ["analysis", "verdict"],
        "additionalProperties": False,
    }
    json_schema = {"name": "verdict", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


@judges.register("openai")
class OpenAIJudge(Judge):
    """Queries a model on a server with an OpenAI-compatible API, making several requests at a time.

    Args:
        model: Name of the model on the server.
        base_url: Address of the server, up to and including ``/v1``.
        answer: Format of replies. "line": reasoning, then a line with the verdict. "json": an object, whose schema
            is sent to the server. "choice": only the verdict (fastest). "motif": Motif's own prompt and parsing.
        revision: Revision of the model; stored answers from other revisions are not reused.
        temperature, top_p: Sampling parameters.
        max_tokens: Maximum length of a reply. Defaults to 8 for "choice" and to 2048 otherwise.
        soft_labels: Request the log-probabilities of the verdict's token.
        extra: Additional entries of the request body, such as ``{top_k: 50}``; null removes a default entry.
        concurrency: Number of simultaneous requests.
        prompt_price, completion_price: Prices per million tokens, for estimates.
        api_key_env, timeout, max_retries, backoff, max_reply_bytes: See `groundling.io.chat_server.ChatServer`.
    """

    def __init__(
        self,
        model: str,
        base_url: Annotated[str, CommandLineOnly, Private] = "http://127.0.0.1:8000/v1",
        answer: AnswerFormat = "line",
        revision: str | None = None,
        temperature: Annotated[float, Ge(0)] = 0.1,
        top_p: Annotated[float, Gt(0), Le(1)] = 0.95,
        max_tokens: Annotated[int | None, Ge(1)] = None,
        soft_labels: bool = True,
        extra: dict[str, Any] | None = None,
        concurrency: Annotated[int, Ge(1)] = 16,
        prompt_price: Annotated[float | None, Ge(0)] = None,
        completion_price: Annotated[float | None, Ge(0)] = None,
        api_key_env: Annotated[str, CommandLineOnly, Private] = "OPENAI_API_KEY",
        timeout: float = 120.0,
        max_retries: int = 6,
        backoff: float = 1.0,
        max_reply_bytes: int = 4 * 2**20,
    ) -> None:
        self.server = ChatServer(base_url, api_key_env, timeout, max_retries, backoff, max_reply_bytes)
        self.model, self.answer_format, self.revision = model, answer, revision
        self.parallel = concurrency
        self._prices = (prompt_price, completion_price)
        self.expected_tokens = _EXPECTED_TOKENS[answer]
        self.expected_seconds = 0.2 + self.expected_tokens / _EXPECTED_SPEED
        longest = max_tokens or (8 if answer == "choice" else 2048)
        body = {"temperature": temperature, "top_p": top_p, "max_tokens": longest, **(extra or {})}
        self._sampling: dict[str, Any] = {key: value for key, value in body.items() if value is not None}
        # Parts of a request that a server may reject; each is dropped once a request succeeds only without it.
        used = {"constraint": _constraint(answer, WORDS), "logprobs": soft_labels}
        self._optional = [name for name, is_used in used.items() if is_used]
        self._failures = 0

    def identity(self) -> dict[str, Any]:
        return {
            "judge": "openai",
            "model": self.model,
            "revision": self.revision,
            "sampling": self._sampling,
            "optional": [one for one in [_constraint(self.answer_format, WORDS)] if one],
        }

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        prompt, completion = self._prices
        if prompt is None and completion is None:
            return None
        return ((prompt or 0.0) * prompt_tokens + (completion or 0.0) * completion_tokens) / 1e6

    def ask(self, requests: Iterable[Request], on_reply: OnReply) -> None:
        try:
            asyncio.run(self._ask_all(iter(requests), on_reply))
        except ExceptionGroup as group:  # the first worker's error; the others were cancelled
            raise group.exceptions[0] from group

    async def _ask_all(self, requests: Iterator[Request], on_reply: OnReply) -> None:
        async def work() -> None:
            for request in requests:  # shared by the workers
                present: Request | None = request
                while present is not None:
                    present = on_reply(present, await self._reply(present))

        async with self.server, asyncio.TaskGroup() as group:
            for _ in range(self.parallel):
                group.create_task(work())

    async def _reply(self, request: Request) -> Reply:
        try:
            reply = self._read(await self._complete(request), request.question)
        except RequestFailed as error:
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                raise RunError(
                    f"{self.server.base_url}: {self._failures} consecutive requests failed; the last error: {error}"
                ) from error
            return Reply("", failure=str(error))
        self._failures = 0
        return reply

    async def _complete(self, request: Request) -> dict[str, Any]:
        body = {"model": self.model, "messages": request.conversation, **self._sampling}
        entries = {"constraint": _constraint(self.answer_format, request.question.words), "logprobs": _LOGPROBS}
        known = self._optional  # another request may shorten the list in the meantime
        for count in range(len(known), -1, -1):
            for optional in combinations(known, count):
                try:
                    parts = {key: value for name in optional for key, value in entries[name].items()}
                    content = await self.server.complete(body | parts)
                except RequestRefused as error:
                    refused = error
                    continue
                if news := [next(iter(entries[name])) for name in self._optional if name not in optional]:
                    warn_caller(
                        f"{self.server.base_url} rejects {' and '.join(news)}: continuing without them. Without "
                        "logprobs there are no soft labels; without the others, only the prompt specifies the format"
                    )
                self._optional = [name for name in self._optional if name in optional]
                return content
        raise refused

    def _read(self, content: dict[str, Any], question: Question) -> Reply:
        """Parse a response, whose structure is unknown apart from what `ChatServer.complete` has checked."""
        choice = content["choices"][0]
        text = text_of(content) or ""
        usage = content.get("usage")
        tokens = usage if isinstance(usage, dict) else {}
        complete = choice.get("finish_reason") != "length"
        return Reply(
            text=self.server.scrub(text),
            complete=complete,
            probabilities=self._probabilities(choice, text, complete, question),
            prompt_tokens=token_count(tokens.get("prompt_tokens"), _MAX_TOKENS),
            completion_tokens=token_count(tokens.get("completion_tokens"), _MAX_TOKENS),
        )

    def _probabilities(
        self, choice: dict[str, Any], text: str, complete: bool, question: Question
    ) -> tuple[float, ...] | None:
        """Return the probabilities of the question's words, based on the alternatives to the verdict's first token."""
        verdict = parse(text, self.answer_format, complete, question.noun, question.words)
        if verdict is None:
            return None
        try:
            tokens = choice["logprobs"]["content"]
            written = "".join(token["token"] for token in tokens)
            # The tokens may start with reasoning that the server removed from the text.
            begin = len(text) - len(written) if written.endswith(text) else len(text)
            for token in tokens:
                end = begin + len(token["token"])
                if begin <= verdict.position < end:
                    lead = token["token"][: verdict.position - begin]
                    return _verdict_probabilities(token["top_logprobs"], lead, question.words)
                begin = end
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            pass  # the server returned no log-probabilities, or used a different structure
        return None


def _verdict_probabilities(
    alternatives: list[dict[str, Any]], lead: str, words: Sequence[str]
) -> tuple[float, ...] | None:
    """Return normalised verdict probabilities, using only tokens that start with ``lead``, such as a space."""
    if any(one != word and one.startswith(word) for one in words for word in words):  # 10 may begin with the token 1
        return None
    masses = [0.0] * len(words)
    for alternative in alternatives:
        token = alternative["token"]
        word = token.removeprefix(lead).casefold() if token.startswith(lead) else ""
        for number, verdict in enumerate(words):
            # A token may be shorter than the word ("t" of "tie") or longer ('1"').
            if word and (verdict.startswith(word) or (word.startswith(verdict) and not word[len(verdict)].isalnum())):
                masses[number] += math.exp(float(alternative["logprob"]))
    total = sum(masses)
    if not 0 < total < math.inf:
        return None
    return tuple(mass / total for mass in masses)


@judges.register("transformers")
class TransformersJudge(Judge):
    """Scores the three verdicts, or generates answers, in batches.

    Args:
        model: A folder or hub id; see `groundling.LanguageModel.from_pretrained`.
        answer: "choice": one forward pass scores the verdicts right after the question, and their probabilities are
            the soft labels. "line", "json", "motif": the model generates text; see `OpenAIJudge`.
        revision: Revision of a hub model.
        dtype: Precision of the weights.
        device: "auto", "cpu", "cuda", ...
        batch_size: Number of requests per batch.
        temperature, top_k, top_p, seed: Sampling parameters; temperature 0 selects the most probable token.
        max_tokens: Maximum length of a generated reply.
    """

    def __init__(
        self,
        model: str,
        answer: AnswerFormat = "choice",
        revision: str | None = None,
        dtype: str = "float32",
        device: str = "auto",
        batch_size: Annotated[int, Ge(1)] = 16,
        temperature: Annotated[float, Ge(0)] = 0.1,
        top_k: Annotated[int, Ge(0)] = 50,
        top_p: Annotated[float, Gt(0), Le(1)] = 0.95,
        max_tokens: Annotated[int, Ge(1)] = 512,
        seed: int = 0,
    ) -> None:
        from groundling.lm.language_model import LanguageModel  # slow to import
        from groundling.runtime import devices

        devices.configure()
        self.answer_format = answer
        self.lm = LanguageModel.from_pretrained(model, revision=revision, dtype=dtype, device=device)
        tokenizer: Any = self.lm.tokenizer
        self.control_tokens = [token for token in tokenizer.get_added_vocab() if token.strip()]
        self.parallel, self._seed = batch_size, seed
        self._draws = random.Random(seed)
        self.expected_tokens = 1 if answer == "choice" else max_tokens // 2
        self._identity = {"judge": "transformers", "model": model, "revision": revision, "dtype": dtype}
        self._sampling: dict[str, Any] = {}
        if answer != "choice":
            sampled = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
            self._sampling = {"max_new_tokens": max_tokens, **(sampled if temperature else {"do_sample": False})}

    def identity(self) -> dict[str, Any]:
        return {**self._identity, "sampling": {**self._sampling, "seed": self._seed if self._sampling else None}}

    def accepts(self, question: Question) -> str | None:
        from groundling.lm.tokens import indistinguishable  # slow to import

        alike = indistinguishable(self.lm.tokenizer, question.words) if self.answer_format == "choice" else []
        return f"the judge's tokenizer cannot distinguish {' and '.join(alike[0])}: set answer=line" if alike else None

    def ask(self, requests: Iterable[Request], on_reply: OnReply) -> None:
        queue = iter(requests)
        again: list[Request] = []
        while batch := again + list(islice(queue, max(0, self.parallel - len(again)))):
            replies = self._choose(batch) if self.answer_format == "choice" else self._write(batch)
            retries = [on_reply(request, reply) for request, reply in zip(batch, replies, strict=True)]
            again = [request for request in retries if request is not None]

    def _choose(self, requests: Sequence[Request]) -> Iterator[Reply]:
        import torch

        prompts: Any = [self.prompt(request.conversation) for request in requests]
        with torch.inference_mode():
            scores = self.lm.score(prompts, requests[0].question.words)
        for prompt, log_probs in zip(self.lm.prompt_tokens(prompts), scores, strict=True):
            probabilities = tuple(log_probs.cpu().double().softmax(-1).tolist())
            if math.isnan(probabilities[0]):
                yield Reply("", failure="the model returned non-finite probabilities")
                continue
            yield Reply(requests[0].question.words[int(log_probs.argmax())], True, probabilities, len(prompt), 1)

    def _write(self, requests: Sequence[Request]) -> Iterator[Reply]:
        from groundling.lm.write.generation import sampling_from

        prompts: Any = [self.prompt(request.conversation) for request in requests]
        # Transformers samples from torch's global generator, which training may be using.
        with sampling_from(self._draws.getrandbits(63)):
            written = self.lm.generate(prompts, **self._sampling)
        for prompt, generation in zip(self.lm.prompt_tokens(prompts), written, strict=True):
            count = len(generation.token_ids)
            complete = count < self._sampling["max_new_tokens"]
            yield Reply(generation.text, complete, None, len(prompt), count)

    def prompt(self, conversation: Sequence[Message]) -> str | list[int]:
        """Return the conversation as token ids from the chat template, or as a string if the model has none."""
        system, *said = (message["content"] for message in conversation)
        if not self.lm.tokenizer.chat_template:
            return "\n\n".join([system, *said, "Answer: "])
        return self.lm.chat.tokens(system, said)
