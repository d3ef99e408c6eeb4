"""Asking a judge about pairs of captions, a second time if a reply has no verdict."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from groundling.errors import RunError
from groundling.judges.asking.judge import Judge, Reply, Request, Verdict, parse
from groundling.judges.asking.questions import Message, Question
from groundling.judges.preferences.pairs import Comparison, Preference
from groundling.judges.preferences.store import LABELS, Captions, Store, StoredAnswer

_EXCERPT = 200  # characters of a reply that a message repeats
_MAX_INVALID = 20  # invalid answers in a row, each of two requests, after which annotation stops
_TRIAL, _MIN_VALID = 200, 0.1  # after this many answers, annotation stops if a smaller share has a verdict


@dataclass(frozen=True)
class Outcome:
    """The judge's replies about one pair; the last one has the verdict, if any."""

    number: int
    replies: list[Reply]
    verdict: Verdict | None
    seconds: float

    @property
    def failure(self) -> str | None:
        """Reason for the last request's missing reply; None if it got one."""
        return self.replies[-1].failure

    @property
    def excerpt(self) -> str:
        """The beginning of the last reply in one line, for messages."""
        text = self.replies[-1].text[: 10 * _EXCERPT]
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_EXCERPT]


def conversation(judge: Judge, question: Question, pair: Comparison) -> list[Message]:
    return question.conversation(pair.first, pair.second, judge.answer_format, judge.control_tokens, pair.context)


def ask(judge: Judge, question: Question, pairs: Iterable[Comparison], on_outcome: Callable[[Outcome], None]) -> None:
    """Ask about all pairs; call ``on_outcome`` with each result, numbered from 0, as soon as it is known."""
    began: dict[int, float] = {}
    replies: dict[int, list[Reply]] = {}

    def requests() -> Iterator[Request]:
        for number, pair in enumerate(pairs):
            began[number], replies[number] = time.monotonic(), []
            yield Request(number, conversation(judge, question, pair), question)

    def on_reply(request: Request, reply: Reply) -> Request | None:
        number, verdict = request.number, None
        replies[number].append(reply)
        if reply.failure is None:
            verdict = _verdict(reply, judge, question)
            if verdict is None and len(replies[number]) == 1:
                again = question.retry(request.conversation, reply.text, judge.answer_format)
                return replace(request, conversation=again)
        seconds = time.monotonic() - began.pop(number)
        on_outcome(Outcome(number, replies.pop(number), verdict, seconds))
        return None

    judge.ask(requests(), on_reply)


def _verdict(reply: Reply, judge: Judge, question: Question) -> Verdict | None:
    verdict = parse(reply.text, judge.answer_format, reply.complete, question.noun)
    if verdict is None and reply.probabilities is not None:
        return Verdict(Preference(reply.probabilities.index(max(reply.probabilities))), 0)
    return verdict


@dataclass(frozen=True)
class OrderedPair:
    """An unordered pair in one order."""

    key: str
    captions: Captions
    swapped: bool  # the second of the sorted captions is shown first
    context: str

    @property
    def shown(self) -> Comparison:
        first, second = reversed(self.captions) if self.swapped else self.captions
        return Comparison(first, second, self.context)


class Inquiry:
    """Asks a judge about items and stores each answer; stops early if the judge gives no verdicts."""

    def __init__(
        self, judge: Judge, question: Question, store: Store, on_answer: Callable[[StoredAnswer | None], None]
    ) -> None:
        self._judge, self._question, self._store, self._on_answer = judge, question, store, on_answer
        self.asked = self.failed = self._invalid = self._invalid_in_a_row = 0
        self.first_failure: str | None = None
        self.invalid_reply: str | None = None

    def ask(self, items: Sequence[OrderedPair]) -> None:
        """Ask; items whose request fails stay without an answer."""
        ask(
            self._judge, self._question, (item.shown for item in items), lambda one: self._keep(items[one.number], one)
        )

    def _keep(self, item: OrderedPair, outcome: Outcome) -> None:
        verdict, replies = outcome.verdict, outcome.replies
        answer = StoredAnswer(
            key=item.key,
            label=LABELS[Preference.UNKNOWN if verdict is None else verdict.preference],
            probabilities=None if verdict is None else replies[-1].probabilities,
            swapped=item.swapped,
            captions=item.captions,
            context=item.context,
            replies=tuple(reply.text for reply in replies if reply.failure is None),
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            completion_tokens=sum(reply.completion_tokens for reply in replies),
            seconds=outcome.seconds,
        )
        failed = outcome.failure is not None
        if not failed or answer.prompt_tokens or answer.completion_tokens:  # its tokens are paid for
            self._store.append(answer)
        self._on_answer(None if failed else answer)
        if failed:
            self.failed += 1
            self.first_failure = self.first_failure or outcome.failure
            return
        self.asked += 1
        self._invalid_in_a_row = 0 if verdict is not None else self._invalid_in_a_row + 1
        if verdict is None:
            self._invalid += 1
            self.invalid_reply = outcome.excerpt
            self._check_judge()

    def _check_judge(self) -> None:
        """Raise `RunError` if too few answers have a verdict."""
        valid_rate = 1 - self._invalid / self.asked
        if self._invalid_in_a_row >= _MAX_INVALID:
            problem = f"{self._invalid_in_a_row} answers in a row have no verdict"
        elif self.asked >= _TRIAL and valid_rate < _MIN_VALID:
            problem = f"only {valid_rate:.0%} of {self.asked} answers have a verdict"
        else:
            return
        form = self._judge.answer_format
        raise RunError(
            f"annotation stops: {problem} in the form {form!r}; the last reply: {self.invalid_reply!r}. It was asked: "
            f"{self._question.verdict_form(form)} Give a judge that is a model another model, or another answer=… "
            "form; let a class of yours reply so"
        )
