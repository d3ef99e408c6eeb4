"""Asking: items go to the judge, replies come back, are read, and become answers in the store."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from groundling.errors import RunError
from groundling.judges.asking.answers import parse
from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.questions import Question, Turn, verdict_form
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.store import LABELS, Answer, Captions, Store

_MOST_INVALID = 20
"""So many answers in a row without a verdict, and a judge is left: each has cost two requests."""
_TRIAL = 200
"""So many answers say what a judge is good for: …"""
_LEAST_VALID = 0.1
"""… one of which a smaller share has a verdict is left."""
_SAMPLE = 200
"""Characters of a reply that a message repeats."""


@dataclass(frozen=True)
class Item:
    """One thing to ask: an unordered pair, in one order."""

    key: str
    captions: Captions
    swapped: bool
    """Whether the second of the sorted captions is shown first."""
    context: str = ""
    """What both have in common."""

    @property
    def shown(self) -> Captions:
        """The captions in the order in which they are shown."""
        return (self.captions[1], self.captions[0]) if self.swapped else self.captions


def one_line(reply: str) -> str:
    """The beginning of a judge's words, for a message."""
    return " ".join("".join(c if c.isprintable() else " " for c in reply[: 10 * _SAMPLE]).split())[:_SAMPLE]


def conversation(judge: Judge, question: Question, item: Item) -> list[Turn]:
    """The question about an item, as the judge is asked it."""
    return question.conversation(*item.shown, judge.answer_format, judge.control_tokens, item.context)


class Inquiry:
    """Puts items to a judge, and stores each answer as soon as it is there.

    Attributes:
        asked: Answers so far.
        invalid: Of these, those without a verdict.
        failed: Requests without one.
        first_failure: Why the first of them has none.
        invalid_reply: What the judge said in the last of those without a verdict, in one line.
    """

    def __init__(
        self, judge: Judge, question: Question, store: Store, on_answer: Callable[[Answer | None], None]
    ) -> None:
        self._judge, self._question, self._store, self._on_answer = judge, question, store, on_answer
        self.asked = self.invalid = self.failed = self._invalid_in_a_row = 0
        self.first_failure: str | None = None
        self.invalid_reply: str | None = None

    def ask(self, items: Sequence[Item]) -> None:
        """Ask about all items; those whose request fails stay without an answer.

        Raises:
            RunError: the judge cannot go on, or gives answers that are of no use; what it said is kept.
        """
        self._items = items
        self._began: dict[int, float] = {}
        self._replies: dict[int, list[Reply]] = {}
        if items:
            self._judge.ask(self._requests(), self._tell, self._flush)

    def _requests(self) -> Iterator[Request]:
        question = self._question
        for number, item in enumerate(self._items):
            self._began[number] = time.monotonic()
            asked = conversation(self._judge, question, item)
            yield Request(number, asked, question.goal, question.world, question.noun)

    def _flush(self) -> None:
        if not self._judge.effortless:
            self._store.flush()

    def _tell(self, request: Request, reply: Reply) -> Request | None:
        number = request.number
        replies = self._replies.setdefault(number, [])
        replies.append(reply)
        if reply.failure is not None:
            self.failed += 1
            self.first_failure = self.first_failure or reply.failure
            if any(each.prompt_tokens or each.completion_tokens for each in replies):
                self._keep(number, Preference.UNKNOWN)  # what was paid for is counted; it is asked again all the same
            self._on_answer(None)
            return None
        form = self._judge.answer_format
        verdict = parse(reply.text, form, reply.complete, request.noun)
        if verdict is None and len(replies) == 1:
            again = self._question.retry(request.conversation, reply.text, form)
            return replace(request, conversation=again)
        answer = self._keep(number, Preference.UNKNOWN if verdict is None else verdict.preference)
        self.asked += 1
        self._on_answer(answer)
        self._count(valid=verdict is not None, reply=reply.text)
        return None

    def _count(self, valid: bool, reply: str) -> None:
        """Leave a judge that is no good while little is spent."""
        self._invalid_in_a_row = 0 if valid else self._invalid_in_a_row + 1
        if valid:
            return
        self.invalid += 1
        self.invalid_reply = one_line(reply)
        valid_rate = 1 - self.invalid / self.asked
        if self._invalid_in_a_row >= _MOST_INVALID:
            problem = f"{self._invalid_in_a_row} answers in a row have no verdict"
        elif self.asked >= _TRIAL and valid_rate < _LEAST_VALID:
            problem = f"only {valid_rate:.0%} of {self.asked} answers have a verdict"
        else:
            return
        raise RunError(
            f"annotation stops: {problem} in the form {self._judge.answer_format!r}; the last reply: "
            f"{self.invalid_reply!r}. It was told: {verdict_form(self._judge.answer_format, self._question.noun)} "
            "Give a judge that is a model another model, or another answer=… form; let a class of yours reply so"
        )

    def _keep(self, number: int, preference: Preference) -> Answer:
        item, replies = self._items[number], self._replies.pop(number)
        answer = Answer(
            key=item.key,
            label=LABELS[preference],
            probabilities=None if preference == Preference.UNKNOWN else replies[-1].probabilities,
            swapped=item.swapped,
            captions=item.captions,
            context=item.context,
            replies=tuple(reply.text for reply in replies if reply.failure is None),
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            completion_tokens=sum(reply.completion_tokens for reply in replies),
            seconds=time.monotonic() - self._began.pop(number),
        )
        self._store.append(answer)
        return answer
