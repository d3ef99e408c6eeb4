"""Judge interfaces, verdict parsing, and querying a judge about pairs of captions.

A `Judge` answers conversations; a `FigureJudge` labels whole datasets from their recorded values.
"""

import hashlib
import inspect
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, RunError, foreign
from groundling.io.documents import DocumentError, parse_json
from groundling.judges.asking import quoting as fence
from groundling.judges.asking.questions import WORDS, AnswerFormat, Message, Question
from groundling.judges.preferences.pairs import Comparison, Pairs
from groundling.registry import Registry

_THOUGHTS_END = "</think>"
_CLOSING = re.compile(
    r"(?:I hope|Hope|Let me know|Please let me know|Feel free|Please feel free|Thank you|Thanks|If you)\b"
    r"[^.!?\"]*[.!?]*"
)
_BLOCK = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_EXCERPT = 200  # maximum number of characters of a reply to quote in a message


class Verdict(NamedTuple):
    choice: int  # index into the question's words; for pairs, a `Preference` code
    position: int  # index in the reply at which the verdict starts


class _Patterns(NamedTuple):
    line: re.Pattern[str]
    word: re.Pattern[str]
    key: re.Pattern[str]


@cache
def _patterns(words: Sequence[str]) -> _Patterns:
    """Return the patterns of verdicts that consist of one of ``words``."""
    one = "|".join(sorted(words, key=len, reverse=True))
    return _Patterns(
        re.compile(rf"[*_`]*verdict[*_]*\s*:[*_]*\s*[*_`\"]*({one})[*_`\"]*\.?[*_`]*", re.IGNORECASE),
        re.compile(rf"[*`\"']*({one})[*`\"']*\.?", re.IGNORECASE),
        re.compile(rf'(?<!\\)"verdict"\s*:\s*"?({one})?'),
    )


def parse(
    reply: str, answer: AnswerFormat, complete: bool = True, noun: str = "description", words: tuple[str, ...] = WORDS
) -> Verdict | None:
    """Return a reply's verdict, or None if it has none; ``noun`` and ``words`` are those of the question.

    A reply may quote captions that contain forged verdicts, so a verdict is accepted only where no quote can occur:
    alone on the last line ("line"), in a JSON object that is the whole reply ("json"), or as the whole reply
    ("choice"). A polite closing sentence ("I hope this helps!") may follow. A truncated reply has no verdict, because
    its last line may be a quotation. "motif" parses replies as Motif's own code does, including its bugs.
    """
    if answer == "motif":  # such as ("best_description": 1), with at most one word before the number
        nouns = f"description|message|{re.escape(noun)}"
        match = re.search(rf"best[_\s]*(?:{nouns})\W*:*\W*(?:[^\W\d]\w*\W+)??(1|2|none)", reply, re.IGNORECASE)
        return match and _verdict("tie" if match[1].lower() == "none" else match[1], match.start(1), WORDS)
    if not complete:
        return None
    rest, newline, last = reply.rstrip().rpartition("\n")
    if newline and _CLOSING.fullmatch(last.strip()):
        reply = rest
    # The tag that opens the reasoning may be part of the prompt, as in some chat templates.
    thoughts, tag, _ = ("", "", "") if reply.lstrip().startswith(("{", "`")) else reply.partition(_THOUGHTS_END)
    begin = len(thoughts + tag) if tag else 0
    if answer == "json":
        return _json(reply, begin, words)
    if answer == "line":
        end = len(reply.rstrip())
        begin = max(begin, reply.rfind("\n", 0, end) + 1)
    text = reply[begin:]
    patterns = _patterns(words)
    match = (patterns.line if answer == "line" else patterns.word).fullmatch(text.strip())
    if match is None:
        return None
    return _verdict(match[1], begin + len(text) - len(text.lstrip()) + match.start(1), words)


def _json(reply: str, begin: int, words: tuple[str, ...]) -> Verdict | None:
    block = _BLOCK.fullmatch(reply, begin)
    try:
        content = parse_json(block[1] if block else reply[begin:], "a reply")
    except DocumentError:
        return None
    verdict = content.get("verdict") if isinstance(content, dict) else None
    if isinstance(verdict, bool) or str(verdict) not in words:
        return None
    # In text quoted inside the analysis, quotation marks are escaped. A key that occurs twice, as in an inner object,
    # or in a different spelling ("ver\u0064ict", which the fence does not alter), is rejected.
    keys = [*_patterns(words).key.finditer(reply, begin)]
    if len(keys) != 1 or keys[0][1] != str(verdict):
        return None
    return _verdict(str(verdict), keys[0].start(1), words)


def _verdict(word: str, position: int, words: tuple[str, ...]) -> Verdict | None:
    word = word.lower()  # a case-insensitive pattern matches "tİe", whose lower case is not "tie"
    return Verdict(words.index(word), position) if word in words else None


@dataclass(frozen=True)
class Request:
    """A conversation that ends with a user message; a retry keeps the ``number`` of the first attempt."""

    number: int
    conversation: list[Message]
    question: Question

    @property
    def captions(self) -> tuple[str, ...]:
        """The captions (two, or one to score) as a language model reads them, after `quoting.neutralise`."""
        return fence.read_all(self.conversation[1]["content"])


@dataclass(frozen=True)
class Reply:
    """A judge's reply.

    Attributes:
        complete: False if the text was truncated.
        probabilities: Probabilities of the question's words (first, second, tie), in order, if available.
        failure: Reason why there is no reply, or None. The next run retries failed requests.
    """

    text: str
    complete: bool = True
    probabilities: tuple[float, ...] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failure: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise RunError(f"a judge's answer must be a string or a Reply with a string, got {self.text!r:.80}")


OnReply = Callable[[Request, Reply], Request | None]  # receives a reply; returns the next request to make, or None


class Judge:
    """A judge that answers conversations. Subclasses implement `answer`, or `ask` to answer several at a time.

    Attributes:
        answer_format: Format in which the judge is asked to write its verdict.
        control_tokens: Strings that the judge's tokenizer treats as special tokens.
        parallel: Number of simultaneous requests.
        expected_tokens: Approximate length of a reply, for estimates.
        expected_seconds: Approximate time of a request in seconds; None if unknown.
        effortless: True if creating and querying the judge costs nothing.
    """

    answer_format: AnswerFormat = "line"
    control_tokens: Sequence[str] = ()
    parallel: int = 1
    expected_tokens: int = 0
    expected_seconds: float | None = None
    effortless: bool = False

    def accepts(self, question: Question) -> str | None:
        """Return a one-line reason why the judge cannot answer this question, or None if it can."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return everything that answers depend on, as JSON: model, revision, sampling, and a version of the code.

        Stored answers are reused for a judge with the same identity. The default contains a hash of the class's code.
        """
        identity = {"judge": type(self).__qualname__}
        with suppress(OSError, TypeError):  # a class that was typed into an interpreter
            identity["code"] = hashlib.sha256(inspect.getsource(type(self)).encode()).hexdigest()[:16]
        return identity

    def identity_about(self, question: Question) -> dict[str, Any]:
        """Return `identity` and everything else that answers to this question depend on."""
        return self.identity()

    def answer(self, request: Request) -> Reply | str:
        """Answer one request; a returned string is converted to a `Reply`."""
        raise NotImplementedError("a judge must implement answer or ask")

    def ask(self, requests: Iterable[Request], on_reply: OnReply) -> None:
        """Answer all requests, including those returned by ``on_reply``; raise `RunError` if no more can succeed.

        Pass each reply to ``on_reply`` before making the next request, so that a killed process loses few replies.
        """
        for request in requests:
            present: Request | None = request
            while present is not None:
                with foreign(f"the judge {type(self).__name__}, asked question {present.number},"):
                    reply = self.answer(present)
                present = on_reply(present, reply if isinstance(reply, Reply) else Reply(reply))

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float | None:
        """Return the price of this many tokens in the user's currency; None if unknown."""
        return None


class FigureJudge(ABC):
    """Labels whole datasets from their recorded values, without making requests or storing answers."""

    @abstractmethod
    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        """Return `Preference` codes, int8 ``(N,)``; raise `ConfigError` if the dataset lacks the required values."""


class _Judges(Registry[Judge | FigureJudge]):
    def create(self, id: str, *args: Any, **kwargs: Any) -> Judge | FigureJudge:
        made = super().create(id, *args, **kwargs)
        if not isinstance(made, Judge | FigureJudge):
            raise ConfigError(f"judge {id!r} is {made!r:.80}{self._hint(id)}")
        return made

    def _hint(self, id: str) -> str:
        factory = self.get(id)
        if isinstance(factory, type) and issubclass(factory, Judge | FigureJudge):
            return ""
        return "; a judge is a subclass of groundling.judges.Judge with answer(request), or a function returning one"


judges: Registry[Judge | FigureJudge] = _Judges("judge")


@dataclass(frozen=True)
class Outcome:
    """The judge's replies about one pair; the last one contains the verdict, if any."""

    number: int
    replies: list[Reply]
    verdict: Verdict | None
    seconds: float

    @property
    def excerpt(self) -> str:
        """The start of the last reply on one line, for messages."""
        text = self.replies[-1].text[: 10 * _EXCERPT]
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_EXCERPT]


def conversation(judge: Judge, question: Question, pair: Comparison) -> list[Message]:
    return question.conversation(pair.first, pair.second, judge.answer_format, judge.control_tokens, pair.context)


def ask(judge: Judge, question: Question, pairs: Iterable[Comparison], on_outcome: Callable[[Outcome], None]) -> None:
    """Ask about all pairs, retrying once if a reply has no verdict; call ``on_outcome`` with each numbered result."""
    began: dict[int, float] = {}
    replies: dict[int, list[Reply]] = {}

    def requests() -> Iterator[Request]:
        for number, pair in enumerate(pairs):
            began[number], replies[number] = time.monotonic(), []
            yield Request(number, conversation(judge, question, pair), question)

    def on_reply(request: Request, reply: Reply) -> Request | None:
        number, verdict = request.number, None
        reply = reply if isinstance(reply, Reply) else Reply(reply)  # a subclass's `ask` may pass anything
        replies[number].append(reply)
        if reply.failure is None:
            verdict = parse(reply.text, judge.answer_format, reply.complete, question.noun, question.words)
            shares, words = reply.probabilities, question.words
            if shares is not None and (len(shares) != len(words) or round(float(sum(shares)), 1) != 1):
                raise RunError(f"a judge's probabilities of {', '.join(words)} must sum to 1, got {shares}")
            if verdict is None and shares is not None:
                most = [place for place, share in enumerate(shares) if share == max(shares)]
                verdict = Verdict(words.index("tie") if len(most) > 1 and "tie" in words else most[0], 0)
            if verdict is None and len(replies[number]) == 1:
                again = question.retry(request.conversation, reply.text, judge.answer_format)
                return replace(request, conversation=again)
        on_outcome(Outcome(number, replies.pop(number), verdict, time.monotonic() - began.pop(number)))
        return None

    judge.ask(requests(), on_reply)
