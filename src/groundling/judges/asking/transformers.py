"""A Transformers language model in this process as judge, with its tokenizer's chat template."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

from groundling.fields import Ge, Gt, Le
from groundling.judges.asking.judge import WORDS, Judge, OnReply, Reply, Request, judges
from groundling.judges.asking.questions import AnswerFormat, Message


@judges.register("transformers")
class TransformersJudge(Judge):
    """Scores the three verdicts, or writes an answer, in batches.

    Args:
        model: A folder or hub id: see `groundling.LanguageModel.from_pretrained`.
        answer: "choice": the most probable verdict right after the question, in one forward pass, with probabilities
            as soft labels. "line", "json", "motif": the model writes; see `OpenAIJudge`.
        revision: Revision of a hub model.
        dtype: Precision of the weights.
        device: "auto", "cpu", "cuda", ...
        batch_size: Number of simultaneous requests.
        temperature, top_k, top_p, seed: Sampling parameters; temperature 0 takes the most probable token.
        max_tokens: Longest written reply.
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
            scores = self.lm.score(prompts, WORDS)
        for prompt, log_probs in zip(self.lm.prompt_tokens(prompts), scores, strict=True):
            first, second, tie = log_probs.cpu().double().softmax(-1).tolist()
            if math.isnan(first):
                yield Reply("", failure="the model gives no finite probabilities")
                continue
            yield Reply(WORDS[int(log_probs.argmax())], True, (first, second, tie), len(prompt), 1)

    def _write(self, requests: Sequence[Request]) -> Iterator[Reply]:
        from groundling.lm.write.generation import sampling_from

        prompts: Any = [self.prompt(request.conversation) for request in requests]
        # Transformers draws from torch's global generator, which a training may be using.
        with sampling_from(self._draws.getrandbits(63)):
            written = self.lm.generate(prompts, **self._sampling)
        for prompt, generation in zip(self.lm.prompt_tokens(prompts), written, strict=True):
            count = len(generation.token_ids)
            complete = count < self._sampling["max_new_tokens"]
            yield Reply(generation.text, complete, None, len(prompt), count)

    def prompt(self, conversation: Sequence[Message]) -> str | list[int]:
        """Return the token ids of the chat template, or a text for a model without one."""
        system, *said = (message["content"] for message in conversation)
        if not self.lm.tokenizer.chat_template:
            return "\n\n".join([system, *said, "Answer: "])
        return self.lm.chat.tokens(system, said)
