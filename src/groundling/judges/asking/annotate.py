"""Annotation: ask a judge about each distinct unordered pair of captions in a dataset, and label the rows."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError, unknown
from groundling.io.files import remove_partial_files
from groundling.judges.asking.inquiry import Inquiry, OrderedPair, conversation
from groundling.judges.asking.judge import FigureJudge, Judge, judges
from groundling.judges.asking.questions import Question
from groundling.judges.preferences.pairs import ANSWERS, Pairs, Preference
from groundling.judges.preferences.store import Captions, Store, StoredAnswer, answer_key, content_hash


@judges.register("score")
class ScoreJudge(FigureJudge):
    """Prefers the segment whose episode had the higher game score at that point; equal scores are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        if "score" not in pairs.info:
            raise ConfigError(f"{pairs.folder}: {unknown('info', 'score', pairs.info)}")
        return _greater(pairs.info["score"], "score")


@judges.register("return")
class ReturnJudge(FigureJudge):
    """Prefers the segment with the higher sum of rewards; equal sums are a tie."""

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return _greater(pairs.returns(), "return")


@judges.register("random")
class RandomJudge(FigureJudge):
    """Prefers one of the two by a fair coin with this ``seed``; never a tie."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def prefer(self, pairs: Pairs) -> NDArray[np.int8]:
        return np.random.default_rng(self.seed).integers(0, 2, len(pairs)).astype(np.int8)


def _greater(figures: NDArray, name: str) -> NDArray[np.int8]:
    """Return the label of each row of the figures ``(N, 2)`` called ``name``, int8 ``(N,)``."""
    if (missing := np.isnan(figures).any(axis=1)).any():  # NaN would compare as equal
        raise ConfigError(
            f"the {name} of {missing.sum()} of {len(figures)} pairs is NaN, the first of them pair {missing.argmax()}: "
            "record them again, or choose another --judge"
        )
    first, second = figures[:, 0], figures[:, 1]
    labels = np.where(first > second, Preference.FIRST, np.where(second > first, Preference.SECOND, Preference.TIE))
    return labels.astype(np.int8)


@dataclass(frozen=True)
class AnnotationEstimate:
    """The work left in a chunk, and its approximate cost."""

    rows: int  # pairs in the dataset
    identical: int  # those with equal captions, which are ties without a request
    distinct: int  # distinct unordered pairs of unequal captions in the dataset
    known: int  # the chunk's answers in the store
    requests: int  # the chunk's missing answers
    prompt_tokens: int  # read by these requests
    completion_tokens: int  # written by the judge
    seconds: float | None  # None if unknown
    cost: float | None  # in the currency of the judge's prices; None if it has none


@dataclass(frozen=True)
class AnnotationSummary:
    """The result of an annotation."""

    labels: dict[str, int]  # rows of the dataset by label: first, second, tie, unknown
    distinct: int  # distinct unordered pairs of unequal captions in the dataset
    answered: int  # answers in the store about them
    invalid: int  # those without a verdict
    first_rate: float | None  # share of the caption shown first, without ties; 0.5 without position bias
    inconsistent: float | None  # share of pairs with different verdicts in the two orders
    asked: int  # answers of this call
    failed: int  # requests of this call without a reply
    first_failure: str | None  # why the first of them failed
    invalid_reply: str | None  # the last reply of this call without a verdict, in one line
    prompt_tokens: int  # of all answers in the store about the dataset, including replaced invalid ones
    completion_tokens: int
    cost: float | None  # of these tokens
    seconds: float  # of this call

    @property
    def written(self) -> bool:
        """True if labels were written; not if there are questions and no verdict."""
        return self.answered > self.invalid or self.distinct == 0


_SAMPLE = 200  # conversations whose length an estimate measures
_CHARACTERS_PER_TOKEN = 4.0


class Annotation:
    """Labels for ``pairs`` by a judge that is asked once about each distinct unordered pair of captions.

    Pairs of equal captions are ties and are not asked about.

    Args:
        folder: Folder of the stored answers; by default ``answers`` in the dataset's folder.
        both_orders: Ask about each pair in both orders; two different verdicts make a tie.

    Raises:
        ConfigError: dataset, question and judge do not fit together.
    """

    def __init__(
        self, pairs: Pairs, judge: Judge, question: Question, *, folder: Path | None = None, both_orders: bool = False
    ) -> None:
        self.pairs, self.judge, self.question, self.both_orders = pairs, judge, question, both_orders
        if question.world != pairs.world:
            raise ConfigError(
                f"{pairs.folder} holds pairs of the world {pairs.world!r}, and the question is about "
                f"{question.world!r}"
            )
        if (refusal := judge.accepts(question)) is not None:
            raise ConfigError(refusal)
        identity = {"question": question.identity(judge.answer_format), "judge": judge.identity_about(question)}
        self.store = Store(folder or pairs.folder / ANSWERS, identity)
        rows = pairs.comparisons(question.blstats)
        numbers: dict[tuple[str, Captions], int] = {}
        self._items: list[list[OrderedPair]] = []  # the questions about each distinct unordered pair
        self._row_pair = np.full(len(rows), -1)  # (N,): number of the unordered pair; -1 for equal captions
        self._row_swapped = np.zeros(len(rows), bool)  # (N,)
        for row, pair in enumerate(rows):
            if pair.first == pair.second:
                continue
            swapped = pair.first > pair.second
            captions = (pair.second, pair.first) if swapped else (pair.first, pair.second)
            if (pair.context, captions) not in numbers:
                numbers[pair.context, captions] = len(numbers)
                self._items.append(self._orders(captions, pair.context))
            self._row_pair[row] = numbers[pair.context, captions]
            self._row_swapped[row] = swapped

    def _orders(self, captions: Captions, context: str) -> list[OrderedPair]:
        """Return the questions about an unordered pair: one, or one in each order."""
        # A hash decides which is shown first, alike in every process, so that a position bias cancels out.
        orders = (False, True) if self.both_orders else (_number(captions) % 2 == 1,)
        return [
            OrderedPair(answer_key(self.store.hash, captions, order, context), captions, order, context)
            for order in orders
        ]

    def items(self, chunk: int, chunks: int) -> list[OrderedPair]:
        """Return the questions of a chunk; a hash assigns each pair of captions to one chunk."""
        if chunks < 1 or not 0 <= chunk < chunks:
            raise ConfigError(f"chunk {chunk} of {chunks}: chunks are numbered from 0 to {max(chunks - 1, 0)}")
        return [item for items in self._items if _number(items[0].captions) // 2 % chunks == chunk for item in items]

    def estimate(self, chunk: int = 0, chunks: int = 1) -> AnnotationEstimate:
        """Estimate the work left, without asking or writing anything."""
        answers, items = self.store.read(), self.items(chunk, chunks)
        missing = _missing(items, answers)
        known = [answers[item.key] for item in items if item.key in answers]
        if known:
            prompt = fmean(answer.prompt_tokens for answer in known)
            completion = fmean(answer.completion_tokens for answer in known)
            seconds: float | None = fmean(answer.seconds for answer in known)
        else:
            sample = missing[:: max(1, len(missing) // _SAMPLE)]
            lengths = [
                sum(len(turn["content"]) for turn in conversation(self.judge, self.question, item.shown))
                for item in sample
            ]
            prompt = fmean(lengths) / _CHARACTERS_PER_TOKEN if lengths else 0.0
            completion, seconds = self.judge.expected_tokens, self.judge.expected_seconds
        count = len(missing)
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
        self,
        name: str,
        *,
        chunk: int = 0,
        chunks: int = 1,
        on_answer: Callable[[StoredAnswer | None], None] = lambda answer: None,
    ) -> AnnotationSummary:
        """Ask the missing questions of a chunk, and write the labels that follow from all answers so far.

        Labels are written even after an error, if there is any verdict; after a kill, the same call asks the rest.

        Args:
            name: Name of the annotator in the dataset.
            on_answer: Called with each answer, or None for a failed request.

        Raises:
            ConfigError: no such chunk, or ``name`` has labels of another question.
            RunError: another process works on the chunk, or the judge fails or gives no verdicts.
        """
        items = self.items(chunk, chunks)
        self._check_name(name)
        began = time.monotonic()
        inquiry = Inquiry(self.judge, self.question, self.store, on_answer)
        with self.store.claim(chunk, chunks):
            for folder in {self.store.folder, self.pairs.folder}:
                remove_partial_files(folder)
            try:
                inquiry.ask(_missing(items, self.store.read()))
            finally:
                self.store.close()
                # The last process to write has read the answers of all others.
                with self.store.exclusive():
                    summary = self._write(name, inquiry, time.monotonic() - began)
        return summary

    def labels(self, answers: Mapping[str, StoredAnswer]) -> tuple[NDArray[np.int8], NDArray[np.float32] | None]:
        """Return labels, int8 ``(N,)``, and probabilities, float32 ``(N, 3)``, NaN where missing, None if all are."""
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
        """Raise `ConfigError` if the name has labels of another question, or from elsewhere."""
        if name not in self.pairs.annotators():
            return
        made, provenance = self.pairs.read_provenance(name), self._provenance()
        if any(made.get(key) != value for key, value in provenance.items()):
            raise ConfigError(
                f"{self.pairs.folder} has labels {name!r} of another question, judge or sampling: choose another --name"
            )

    def _provenance(self) -> dict[str, Any]:
        return {"hash": self.store.hash, "both_orders": self.both_orders}

    def _write(self, name: str, inquiry: Inquiry, seconds: float) -> AnnotationSummary:
        self._check_name(name)
        answers = self.store.read()
        labels, soft = self.labels(answers)
        summary = self._summary(answers, labels, inquiry, seconds)
        if summary.written:  # otherwise the name stays free for another judge or sampling
            # The provenance comes first: labels without one could not be continued.
            provenance = {"asked": self.store.shared_question, "summary": asdict(summary)}
            self.pairs.write_provenance(name, self._provenance() | provenance)
            self.pairs.write_preferences(name, labels, soft)
        return summary

    def _summary(
        self, answers: Mapping[str, StoredAnswer], labels: NDArray[np.int8], inquiry: Inquiry, seconds: float
    ) -> AnnotationSummary:
        answered = [answers[item.key] for items in self._items for item in items if item.key in answers]
        counts = Counter(answer.label for answer in answered)
        decided = counts["first"] + counts["second"]
        both = [
            [_preference(answers[item.key], item) for item in items]
            for items in self._items
            if len(items) == 2 and not _missing(items, answers)
        ]
        prompt = sum(answer.prompt_tokens for answer in answered)
        completion = sum(answer.completion_tokens for answer in answered)
        return AnnotationSummary(
            labels={code.name.lower(): int((labels == code).sum()) for code in Preference},
            distinct=len(self._items),
            answered=len(answered),
            invalid=counts["invalid"],
            first_rate=counts["first"] / decided if decided else None,
            inconsistent=fmean(one != other for one, other in both) if both else None,
            asked=inquiry.asked,
            failed=inquiry.failed,
            first_failure=inquiry.first_failure,
            invalid_reply=inquiry.invalid_reply,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=self.judge.cost(prompt, completion),
            seconds=seconds,
        )


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
    """Return the label of an unordered pair and its probabilities, for the sorted order."""
    if _missing(items, answers):
        return Preference.UNKNOWN, None
    labels = {_preference(answers[item.key], item) for item in items}
    soft = []
    for item in items:
        if (probabilities := answers[item.key].probabilities) is not None:
            first, second, tie = probabilities
            soft.append((second, first, tie) if item.swapped else (first, second, tie))
    label = labels.pop() if len(labels) == 1 else Preference.TIE
    return label, np.mean(soft, axis=0, dtype=np.float32) if len(soft) == len(items) else None
