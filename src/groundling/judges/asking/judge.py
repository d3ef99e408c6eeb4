"""The contract of a judge: it answers conversations, or labels whole datasets by figures."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, RunError, foreign
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.questions import AnswerFormat, Message, Question
from groundling.judges.preferences.pairs import Pairs
from groundling.registry import Registry


@dataclass(frozen=True)
class Request:
    """A conversation that ends with a message of the user; a retry keeps the ``number`` of its request."""

    number: int
    conversation: list[Message]
    question: Question

    @property
    def captions(self) -> tuple[str, str]:
        """Both captions, neutralised as a language model reads them."""
        return fence.read_both(self.conversation[1]["content"])


@dataclass(frozen=True)
class Reply:
    """A judge's reply.

    Attributes:
        complete: False if the text was cut off.
        probabilities: Probabilities of first, second and tie, in the order shown, if available.
        failure: Why there is no reply; the next run asks again.
    """

    text: str
    complete: bool = True
    probabilities: tuple[float, float, float] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str | None = None


OnReply = Callable[[Request, Reply], Request | None]  # takes a reply; returns a request to make next, or None


class Judge:
    """Answers conversations; a subclass implements `answer`, or `ask` to answer several at once.

    Attributes:
        answer_format: The form in which the judge is asked for its verdict.
        control_tokens: Texts that its tokenizer does not read as text.
        parallel: Number of simultaneous requests.
        expected_tokens: Approximate length of a reply, for estimates.
        expected_seconds: Approximate time of a request; None if unknown.
        effortless: Creating and asking the judge costs nothing.
    """

    answer_format: AnswerFormat = "line"
    control_tokens: Sequence[str] = ()
    parallel: int = 1
    expected_tokens: int = 0
    expected_seconds: float | None = None
    effortless: bool = False

    def accepts(self, question: Question) -> str | None:
        """Return why the judge cannot answer this question, in one line, or None."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return all that answers depend on, as JSON: model, revision, sampling, a version of the judge's code.

        Stored answers are reused for a judge of the same identity.
        """
        return {"judge": type(self).__qualname__}

    def identity_about(self, question: Question) -> dict[str, Any]:
        """Return `identity`, with what else its answers to this question depend on."""
        return self.identity()

    def answer(self, request: Request) -> Reply | str:
        """Answer one request; a text stands for a `Reply` with it."""
        raise ConfigError(f"the judge {type(self).__name__} defines neither answer nor ask: define one of them")

    def ask(self, requests: Iterable[Request], on_reply: OnReply) -> None:
        """Answer all requests, and those that ``on_reply`` returns; raise `RunError` if no other request can succeed.

        Pass each reply to ``on_reply`` before making the next request: then a kill loses only the requests in flight.
        """
        for request in requests:
            present: Request | None = request
            while present is not None:
                with foreign(f"the judge {type(self).__name__}, asked question {present.number},"):
                    reply = self.answer(present)
                if not isinstance(reply, Reply | str):
                    raise RunError(
                        f"the judge {type(self).__name__} answers {reply!r:.80}, expected a text or a "
                        "groundling.judges.Reply: return Reply(text)"
                    )
                present = on_reply(present, Reply(reply) if isinstance(reply, str) else reply)

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        """Return the price of so many tokens, in the user's currency; None if unknown."""
        return None


class FigureJudge(ABC):
    """Labels whole datasets by figures; asks nothing and stores no answers."""

    @abstractmethod
    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        """Return labels, int8 ``(N,)``: codes of `Preference`; `ConfigError` if the dataset lacks the figures."""


class JudgeRegistry(Registry[Judge | FigureJudge]):
    """Registers judges, and functions that make one from its arguments."""

    def _hint(self, id: str) -> str:
        if inspect.isfunction(self._factories.get(id)):
            return "; a function makes the judge: to judge, derive a class from groundling.judges.Judge with answer"
        return super()._hint(id)


judges = JudgeRegistry("judge")
