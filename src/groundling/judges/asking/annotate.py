"""Annotate datasets: query a judge about each distinct unordered pair of captions, and label the rows."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, RunError
from groundling.io.files import remove_partial_files
from groundling.judges.asking.judge import Judge, Outcome, ask, conversation
from groundling.judges.asking.questions import Question
from groundling.judges.preferences.pairs import ANSWERS, Comparison, Pairs, Preference
from groundling.judges.preferences.store import LABELS, Captions, Store, StoredAnswer, answer_key, content_hash


@dataclass(frozen=True)
class AnnotationEstimate:
    """Estimate of a chunk's remaining work and its cost."""

    rows: int  # pairs in the dataset
    identical: int  # pairs of equal captions, which are ties and need no request
    distinct: int  # distinct unordered pairs of unequal captions in the dataset
    known: int  # answers for the chunk that are already in the store
    requests: int  # answers for the chunk that are missing
    prompt_tokens: int  # total over these requests
    completion_tokens: int  # total over the judge's replies
    seconds: float | None  # None if unknown
    cost: float | None  # in the currency of the judge's prices; None if they are unknown


@dataclass
class AnnotationSummary:
    """Results of an annotation run."""

    labels: dict[str, int] = field(default_factory=dict)  # numbers of rows by label: first, second, tie, unknown
    distinct: int = 0  # distinct unordered pairs of unequal captions in the dataset
    answered: int = 0  # stored answers about these pairs
    invalid: int = 0  # answers without a verdict
    first_rate: float | None = None  # share of non-tied verdicts in favour of the caption shown first; 0.5 if unbiased
    inconsistent: float | None = None  # fraction of pairs whose verdicts in the two orders differ
    asked: int = 0  # answers obtained by this call
    failed: int = 0  # requests of this call that received no reply
    first_failure: str | None = None  # error of the first failed request
    invalid_reply: str | None = None  # last reply without a verdict in this call, on one line
    prompt_tokens: int = 0  # total over all stored answers about the dataset, including replaced invalid ones
    completion_tokens: int = 0
    cost: float | None = None  # price of these tokens
    seconds: float = 0.0  # duration of this call

    @property
    def written(self) -> bool:
        """True if labels were written, because there was at least one verdict or nothing to ask."""
        return self.answered > self.invalid or self.distinct == 0


@dataclass(frozen=True)
class OrderedPair:
    """An unordered pair, shown in one of its two orders."""

    key: str
    captions: Captions
    swapped: bool  # True if the second of the sorted captions is shown first
    context: str

    @property
    def shown(self) -> Comparison:
        first, second = reversed(self.captions) if self.swapped else self.captions
        return Comparison(first, second, self.context)


_OfPair = tuple[float, float, float] | None
_SAMPLE = 200  # number of conversations measured for an estimate
_CHARACTERS_PER_TOKEN = 4.0
_MAX_INVALID = 20  # annotation stops after this many consecutive answers that were invalid in both requests
OnAnswer = Callable[[StoredAnswer | None], None]  # called with each answer, or None for a failed request


class Annotation:
    """Labels ``pairs`` with a judge that is queried once about each distinct unordered pair of captions.

    Pairs of equal captions are ties and need no query.

    Args:
        folder: Folder of the stored answers; defaults to ``answers`` in the dataset's folder.
        both_orders: Ask about each pair in both orders; conflicting verdicts result in a tie.

    Raises:
        ConfigError: The dataset, the question and the judge are incompatible.
    """

    def __init__(
        self, pairs: Pairs, judge: Judge, question: Question, *, folder: Path | None = None, both_orders: bool = False
    ) -> None:
        self.pairs, self.judge, self.question = pairs, judge, question
        if question.world != pairs.world:
            raise ConfigError(
                f"{pairs.folder} has pairs from the world {pairs.world!r}, but the question is about {question.world!r}"
            )
        if (refusal := judge.accepts(question)) is not None:
            raise ConfigError(refusal)
        identity = {"question": question.identity(judge.answer_format), "judge": judge.identity_about(question)}
        self.store = Store(folder or pairs.folder / ANSWERS, identity)
        self._provenance = {"hash": self.store.hash, "both_orders": both_orders}
        rows = pairs.comparisons(question.blstats)
        numbers: dict[tuple[str, Captions], int] = {}
        self._items: list[list[OrderedPair]] = []  # the questions about each distinct unordered pair
        self._row_pair = np.full(len(rows), -1)  # (N,): index of the unordered pair; -1 for equal captions
        self._row_swapped = np.zeros(len(rows), bool)  # (N,)
        for row, pair in enumerate(rows):
            if pair.first == pair.second:
                continue
            swapped = pair.first > pair.second
            captions = (pair.second, pair.first) if swapped else (pair.first, pair.second)
            number = numbers.setdefault((pair.context, captions), len(numbers))
            self._row_pair[row], self._row_swapped[row] = number, swapped
            if number == len(self._items):
                # A hash decides which caption comes first, so that position bias cancels out and all processes agree.
                orders = (False, True) if both_orders else (_number(captions) % 2 == 1,)
                keys = [answer_key(self.store.hash, captions, order, pair.context) for order in orders]
                new = zip(keys, orders, strict=True)
                self._items.append([OrderedPair(key, captions, order, pair.context) for key, order in new])

    def items(self, chunk: int, chunks: int) -> list[OrderedPair]:
        """Return the questions of a chunk; a hash assigns each pair of captions to one chunk."""
        if chunks < 1 or not 0 <= chunk < chunks:
            raise ConfigError(f"chunk {chunk} of {chunks}: chunks are numbered from 0 to {max(chunks - 1, 0)}")
        return [item for items in self._items if _number(items[0].captions) // 2 % chunks == chunk for item in items]

    def estimate(self, chunk: int = 0, chunks: int = 1) -> AnnotationEstimate:
        """Estimate the remaining work without querying the judge or writing anything."""
        answers, items = self.store.read(), self.items(chunk, chunks)
        missing = _missing(items, answers)
        count, known = len(missing), [answers[item.key] for item in items if item.key in answers]
        completion: float = self.judge.expected_tokens
        seconds, prompt = self.judge.expected_seconds, 0.0
        if known:
            prompt = fmean(answer.prompt_tokens for answer in known)
            completion = fmean(answer.completion_tokens for answer in known)
            seconds = fmean(answer.seconds for answer in known)
        elif missing:
            asked = [conversation(self.judge, self.question, one.shown) for one in missing[:: count // _SAMPLE or 1]]
            prompt = fmean(sum(len(turn["content"]) for turn in one) for one in asked) / _CHARACTERS_PER_TOKEN
        return AnnotationEstimate(
            rows=len(self.pairs),
            identical=int((self._row_pair < 0).sum()),
            distinct=len(self._items),
            known=len(items) - count,
            requests=count,
            prompt_tokens=round(prompt * count),
            completion_tokens=round(completion * count),
            seconds=None if seconds is None else seconds * count / self.judge.parallel,
            cost=self.judge.cost(prompt * count, completion * count),
        )

    def run(
        self, name: str, *, chunk: int = 0, chunks: int = 1, on_answer: OnAnswer = lambda answer: None
    ) -> AnnotationSummary:
        """Ask the unanswered questions of a chunk, and write the labels derived from all answers so far.

        Labels are written even after an error if there is any verdict. If the process is killed, repeat the same call
        to ask the remaining questions. ``name`` is the annotator's name in the dataset.

        Raises:
            ConfigError: The chunk does not exist, or ``name`` already has labels for a different question.
            RunError: Another process is working on the chunk, or the judge fails or returns no verdicts.
        """
        items = self.items(chunk, chunks)
        self._check_name(name)
        began, summary = time.monotonic(), AnnotationSummary()
        with self.store.claim(chunk, chunks):
            for folder in {self.store.folder, self.pairs.folder}:
                remove_partial_files(folder)
            try:
                self._ask(_missing(items, self.store.read()), summary, on_answer)
            finally:
                self.store.close()
                # The process that writes last has read the answers of all other processes.
                with self.store.exclusive():
                    self._check_name(name)
                    summary.seconds = time.monotonic() - began
                    self._write(name, summary)
        return summary

    def _ask(self, items: Sequence[OrderedPair], summary: AnnotationSummary, on_answer: OnAnswer) -> None:
        """Query the judge and store each answer; items whose requests fail remain unanswered."""
        invalid_in_a_row = 0

        def keep(outcome: Outcome) -> None:
            nonlocal invalid_in_a_row
            item, verdict, replies = items[outcome.number], outcome.verdict, outcome.replies
            answer = StoredAnswer(
                **vars(item),
                label=LABELS[Preference.UNKNOWN if verdict is None else verdict.choice],
                probabilities=None if verdict is None else cast(_OfPair, replies[-1].probabilities),
                replies=tuple(reply.text for reply in replies if reply.failure is None),
                prompt_tokens=sum(reply.prompt_tokens for reply in replies),
                completion_tokens=sum(reply.completion_tokens for reply in replies),
                seconds=outcome.seconds,
            )
            failure = replies[-1].failure
            if failure is None or answer.prompt_tokens or answer.completion_tokens:  # failed requests may cost tokens
                self.store.append(answer)
            on_answer(answer if failure is None else None)
            if failure is not None:
                summary.failed += 1
                summary.first_failure = summary.first_failure or failure
                return
            summary.asked += 1
            invalid_in_a_row = invalid_in_a_row + 1 if verdict is None else 0
            if verdict is None:
                summary.invalid_reply = outcome.excerpt
            if invalid_in_a_row >= _MAX_INVALID:
                form = self.judge.answer_format
                raise RunError(
                    f"annotation stopped: {_MAX_INVALID} answers in a row have no verdict in the form {form!r}; the "
                    f"last reply: {summary.invalid_reply!r}. The prompt asked: {self.question.verdict_form(form)} "
                    "Use a different model or a different answer=…; custom judges must reply in this form"
                )

        ask(self.judge, self.question, (item.shown for item in items), keep)

    def labels(self, answers: Mapping[str, StoredAnswer]) -> tuple[NDArray[np.int8], NDArray[np.float32] | None]:
        """Return int8 labels ``(N,)`` and float32 probabilities ``(N, 3)``, NaN where unknown (None if all are)."""
        combined = [_combine(items, answers) for items in self._items]
        labels = np.full(len(self.pairs), Preference.TIE, np.int8)
        soft = np.full((len(self.pairs), 3), np.nan, np.float32)
        soft[self._row_pair < 0] = (0, 0, 1)
        for row in np.flatnonzero(self._row_pair >= 0):
            label, probabilities = combined[self._row_pair[row]]
            swapped = bool(self._row_swapped[row])
            labels[row] = label.swapped if swapped else label
            if probabilities is not None:
                soft[row] = probabilities[[1, 0, 2]] if swapped else probabilities
        return labels, soft if any(probabilities is not None for _, probabilities in combined) else None

    def _check_name(self, name: str) -> None:
        """Raise `ConfigError` if the name already has labels for a different question or of unknown origin."""
        made = self.pairs.read_provenance(name) if name in self.pairs.annotators() else self._provenance
        if any(made.get(key) != value for key, value in self._provenance.items()):
            raise ConfigError(
                f"{self.pairs.folder} already has {name!r} labels for a different question or judge: change --name"
            )

    def _write(self, name: str, summary: AnnotationSummary) -> None:
        """Complete the summary from all answers in the store, and write labels if there is any verdict."""
        answers = self.store.read()
        labels, soft = self.labels(answers)
        answered = [answers[item.key] for items in self._items for item in items if item.key in answers]
        counts = Counter(answer.label for answer in answered)
        decided = counts["first"] + counts["second"]
        complete = [items for items in self._items if len(items) == 2 and not _missing(items, answers)]
        both = [[_preference(answers[item.key], item) for item in items] for items in complete]
        summary.labels = {code.name.lower(): int((labels == code).sum()) for code in Preference}
        summary.distinct, summary.answered, summary.invalid = len(self._items), len(answered), counts["invalid"]
        summary.first_rate = counts["first"] / decided if decided else None
        summary.inconsistent = fmean(one != other for one, other in both) if both else None
        summary.prompt_tokens = sum(answer.prompt_tokens for answer in answered)
        summary.completion_tokens = sum(answer.completion_tokens for answer in answered)
        summary.cost = self.judge.cost(summary.prompt_tokens, summary.completion_tokens)
        if summary.written:  # otherwise the name can still be used for a different judge
            # Provenance is written first, since a later call cannot extend labels without it.
            provenance = {"asked": self.store.shared_question, "summary": asdict(summary)}
            self.pairs.write_provenance(name, self._provenance | provenance)
            self.pairs.write_preferences(name, labels, soft)


def _number(captions: Captions) -> int:
    return int(content_hash(captions)[:15], 16)


def _missing(items: Sequence[OrderedPair], answers: Mapping[str, StoredAnswer]) -> list[OrderedPair]:
    """Return the items without a valid answer."""
    return [item for item in items if item.key not in answers or answers[item.key].label == "invalid"]


def _preference(answer: StoredAnswer, item: OrderedPair) -> Preference:
    """Return the preference between the sorted captions."""
    return answer.preference.swapped if item.swapped else answer.preference


def _combine(
    items: Sequence[OrderedPair], answers: Mapping[str, StoredAnswer]
) -> tuple[Preference, NDArray[np.float32] | None]:
    """Return the label and the probabilities of an unordered pair, with its captions in sorted order."""
    if _missing(items, answers):
        return Preference.UNKNOWN, None
    labels = {_preference(answers[item.key], item) for item in items}
    found = [(answers[item.key].probabilities, item.swapped) for item in items]
    soft = [np.array(shown)[[1, 0, 2] if swapped else [0, 1, 2]] for shown, swapped in found if shown is not None]
    label = labels.pop() if len(labels) == 1 else Preference.TIE
    return label, np.mean(soft, axis=0, dtype=np.float32) if len(soft) == len(items) else None
