"""Asking: items go to the judge, replies come back, are read, and become answers in the store."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from groundling.judges.asking.answers import parse
from groundling.judges.asking.judge import Judge, Reply, Request
from groundling.judges.asking.questions import Question, Turn
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.store import LABELS, Answer, Captions, Store


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


def conversation(judge: Judge, question: Question, item: Item) -> list[Turn]:
    """The question about an item, as the judge is asked it."""
    return question.conversation(*item.shown, judge.answer_format, judge.control_tokens, item.context)


class Inquiry:
    """Puts items to a judge, and stores each answer as soon as it is there.

    Attributes:
        asked: Answers so far.
        failed: Requests without one.
        first_failure: Why the first of them has none.
    """

    def __init__(
        self, judge: Judge, question: Question, store: Store, on_answer: Callable[[Answer | None], None]
    ) -> None:
        self._judge, self._question, self._store, self._on_answer = judge, question, store, on_answer
        self.asked = self.failed = 0
        self.first_failure: str | None = None

    def ask(self, items: Sequence[Item]) -> None:
        """Ask about all items; those whose request fails stay without an answer."""
        self._items, self._all_asked = items, False
        self._began: dict[int, float] = {}
        self._replies: dict[int, list[Reply]] = {}
        if items:
            self._judge.ask(self._requests(), self._tell)

    def _requests(self) -> Iterator[Request]:
        goal, world = self._question.goal, self._question.world
        for number, item in enumerate(self._items):
            self._flush()
            self._began[number] = time.monotonic()
            yield Request(number, conversation(self._judge, self._question, item), goal, world)
        self._all_asked = True  # nobody comes here again: from now on each answer is flushed by itself
        self._flush()

    def _flush(self) -> None:
        # Before another question is asked, so that a batch of answers waits for the disk once.
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
                self._keep(
                    number, Preference.UNKNOWN
                )  # what was paid for is counted; it is asked again all the same
            self._on_answer(None)
            return None
        form = self._judge.answer_format
        verdict = parse(reply.text, form, reply.complete)
        if verdict is None and len(replies) == 1:
            again = self._question.retry(request.conversation, reply.text, form)
            return replace(request, conversation=again)
        answer = self._keep(number, Preference.UNKNOWN if verdict is None else verdict.preference)
        self.asked += 1
        self._on_answer(answer)
        return None

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
        if self._all_asked:
            self._flush()
        return answer
