"""Answer requests in batches on one thread: generate texts token by token, or choose from a request's list of texts."""

import itertools
import queue
import random
import secrets
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groundling.lm.language_model import answer_states, states_after
from groundling.lm.write.sampling import draw, filtered
from groundling.serving.requests import MAX_TEXTS, CompletionRequest, Source
from groundling.serving.served_policy import ServedPolicy
from groundling.tokenization.detokenize import Continuation


@dataclass(eq=False)
class Completion:
    """A text being generated or chosen; log-probabilities are the model's, before temperature and filters."""

    request: CompletionRequest
    source: Source
    uniforms: random.Random
    done: "Future[Completion]" = field(default_factory=Future)  # may be cancelled
    prompt: list[int] = field(default_factory=list)  # token ids
    choice_ids: list[list[int]] = field(default_factory=list)  # token ids of the request's choices
    choice_log_probs: list[float] | None = None  # under the policy
    ids: list[int] = field(default_factory=list)  # the answer's tokens
    log_probs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)  # the most likely tokens at each position
    text: str = ""
    finish: str | None = None  # "stop" or "length"

    def add(self, id: int, log_probs: Tensor) -> None:
        """Append a token; ``log_probs`` (vocabulary,) contains the log-probabilities of all tokens."""
        self.ids.append(id)
        self.log_probs.append(float(log_probs[id]))
        top = log_probs.topk(min(self.request.num_top or 0, len(log_probs)))
        self.top.append(list(zip(top.indices.tolist(), top.values.tolist(), strict=True)))

    def find_end(self, ends: Collection[int]) -> None:
        """Update the text after a token has been added; end tokens and stop strings are not part of the text."""
        if self.ids[-1] in ends:
            self.finish = "stop"
            return
        self.text, stop = self._decoder.append(self.ids[-1]), self.request.stop
        places = [self.text.find(one) for one in ([stop] if isinstance(stop, str) else stop)]
        if stopped := [place for place in places if place >= 0]:
            self.text, self.finish = self.text[: min(stopped)], "stop"
        elif len(self.ids) == self._max_tokens:
            self.finish = "length"

    def begin(self, policy: ServedPolicy) -> None:
        """Encode the prompt and the choices; raise `GroundlingError` if the policy cannot read them."""
        lm, self._max_tokens = policy.lm, self.request.max_new_tokens
        self.prompt, self.choice_ids = policy.read(self.source, self.request.choices)
        self._decoder = Continuation(lm.tokenizer, () if lm.is_encoder_decoder else self.prompt)
        if lm.max_positions is not None:  # the model does not read an answer's last token
            read = 0 if lm.is_encoder_decoder else len(self.prompt) - 1
            self._max_tokens = min(self._max_tokens, lm.max_positions - read)


class Writer:
    """Answers requests with a policy, whose model is used only on this object's thread.

    New requests join those in progress at the next token. The attention cache of the latest prompts is kept, so the
    next step of a conversation reads only new tokens. A text depends on its own seed, not on the rest of its batch.
    """

    def __init__(self, policy: ServedPolicy) -> None:
        self._policy, self.lm, self._ends = policy, policy.lm, policy.lm.end_tokens.ids
        self._arrived: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: CompletionRequest) -> "list[Future[Completion]]":
        """Return futures of the answers, `n` per prompt; they raise `GroundlingError` if the policy cannot answer."""
        seed = secrets.randbits(64) if request.seed is None else request.seed
        asked = enumerate(itertools.product(request.sources, range(request.n)))
        answers = [Completion(request, source, random.Random(f"{seed} {place}")) for place, (source, _) in asked]
        for answer in answers:
            self._arrived.put(answer)
        return [answer.done for answer in answers]

    def close(self) -> None:
        """Stop the thread; requests in progress remain unanswered."""
        self._arrived.put(None)
        self._thread.join()

    @torch.no_grad()
    def _run(self) -> None:
        waiting: list[Completion] = []
        with self.lm.keeping():
            while True:
                while not waiting or not self._arrived.empty():
                    if (answer := self._arrived.get()) is None:
                        return
                    with _failing([answer]):
                        answer.begin(self._policy)
                        waiting.append(answer)
                listed = sorted((a for a in waiting if a.choice_ids), key=lambda one: len(one.choice_ids))[:MAX_TEXTS]
                for _, group in itertools.groupby(listed, key=lambda one: len(one.choice_ids)):
                    self._choose(list(group))
                if written := [answer for answer in waiting if not answer.choice_ids][:MAX_TEXTS]:
                    self._write(written)
                for answer in waiting:
                    if answer.finish:
                        with suppress(InvalidStateError):  # cancelled
                            answer.done.set_result(answer)
                waiting = [answer for answer in waiting if not answer.done.done()]

    def _choose(self, answers: Sequence[Completion]) -> None:
        """Score each answer's choices, sample one, and score its tokens. The number of choices is the same for all."""
        with _failing(answers):
            prompts = [answer.prompt for answer in answers]
            log_probs = self._policy.log_probs(prompts, [answer.request.choices for answer in answers])
            indices = _sample(log_probs, answers)
            chosen = [answer.choice_ids[index] for answer, index in zip(answers, indices, strict=True)]
            with self.lm.autocast():
                states = answer_states(self.lm, prompts, chosen, growing=not self.lm.is_encoder_decoder)
            rows = iter(self._log_probs(states))
            for answer, index, ids, of_choices in zip(answers, indices, chosen, log_probs.tolist(), strict=True):
                for id in ids:
                    answer.add(id, next(rows))
                answer.text, answer.finish = answer.request.choices[index], "stop"
                answer.choice_log_probs = of_choices

    def _write(self, answers: Sequence[Completion]) -> None:
        """Generate one token of each answer."""
        with _failing(answers):
            with self.lm.autocast():
                states = states_after(self.lm, [one.prompt for one in answers], [one.ids for one in answers])
            log_probs = self._log_probs(states)
            for answer, id, row in zip(answers, _sample(log_probs, answers), log_probs, strict=True):
                answer.add(id, row)
                answer.find_end(self._ends)

    def _log_probs(self, states: Tensor) -> Tensor:
        """Return the model's log-probabilities, float32 (rows, vocabulary)."""
        with self.lm.autocast():
            return self.lm.backbone.logits(states).float().log_softmax(-1)


def _sample(log_probs: Tensor, answers: Sequence[Completion]) -> list[int]:
    """Return an index for each row (answers, n): the most likely one, or one sampled as its request specifies."""
    chosen = log_probs.argmax(-1)
    samplings = [answer.request.sampling for answer in answers]
    for sampling in {one for one in samplings if one.do_sample}:
        rows = [row for row, one in enumerate(samplings) if one == sampling]
        uniforms = torch.tensor([answers[row].uniforms.random() for row in rows], dtype=torch.float64)
        chosen[rows] = draw(filtered(log_probs[rows], sampling), uniforms)
    indices: list[int] = chosen.tolist()
    return indices


@contextmanager
def _failing(answers: Sequence[Completion]) -> Iterator[None]:
    """Pass errors to these answers, so that the thread can continue with others."""
    try:
        yield
    except Exception as error:
        for answer in answers:
            with suppress(InvalidStateError):  # cancelled
                answer.done.set_exception(error)
