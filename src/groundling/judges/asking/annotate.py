"""Annotation: which questions a dataset raises, asking them, and from the answers to labels.

Each *distinct unordered* pair of captions is asked about once (twice with both orders), whatever number of rows it
has; a pair of equal captions is a tie. A pair belongs to a chunk by a hash of its captions, so that chunks share
neither a question nor the need to talk to each other.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundling.errors import ConfigError
from groundling.io.locks import remove_partial_files
from groundling.judges.asking.inquiry import Inquiry, Item, conversation
from groundling.judges.asking.judge import Judge
from groundling.judges.asking.questions import Question
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.pairs import ANSWERS, Pairs
from groundling.judges.preferences.store import Answer, Captions, Store, answer_key, content_hash

_SAMPLE = 200
"""Conversations that an estimate reads."""
_CHARACTERS_PER_TOKEN = 4.0
_SWAP = {Preference.FIRST: Preference.SECOND, Preference.SECOND: Preference.FIRST}


@dataclass(frozen=True)
class AnnotationEstimate:
    """What is left to do, and about what it takes.

    Attributes:
        rows: Pairs in the dataset.
        identical: Of these, those with equal captions: ties without a request.
        distinct: Distinct unordered pairs of unequal captions in the dataset.
        known: Answers that the store has, of this chunk's.
        requests: Answers that are missing, of this chunk's.
        prompt_tokens: Of these requests, about.
        completion_tokens: Likewise.
        seconds: Likewise; None if nothing is known about that yet.
        cost: Likewise, in the currency of the judge's prices; None if it has none.
    """

    rows: int
    identical: int
    distinct: int
    known: int
    requests: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float | None
    cost: float | None


@dataclass(frozen=True)
class Summary:
    """What came of it.

    Attributes:
        labels: Rows of the dataset, by label ("first", "second", "tie", "unknown").
        distinct: Distinct unordered pairs of unequal captions in the dataset.
        answered: Answers in the store about them.
        invalid: Of these, those without a verdict.
        first_rate: Of the verdicts that are no tie, the share for the one shown first: 0.5 without position bias.
        inconsistent: Of pairs with a verdict in both orders, the share whose two verdicts differ; None without any.
        asked: Answers of this call.
        failed: Requests of this call that got no answer.
        first_failure: What the first of them died of.
        invalid_reply: The last of this call's replies that had no verdict, in one line.
        prompt_tokens: Of all that the store has about the dataset, also for answers that were invalid at first.
        completion_tokens: Likewise.
        cost: Of these tokens.
        seconds: Of this call.
    """

    labels: dict[str, int]
    distinct: int
    answered: int
    invalid: int
    first_rate: float | None
    inconsistent: float | None
    asked: int
    failed: int
    first_failure: str | None
    invalid_reply: str | None
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float

    @property
    def written(self) -> bool:
        """Whether the labels were written; not where there is something to ask and no verdict at all."""
        return self.answered > self.invalid or self.distinct == 0


class Annotation:
    """A dataset, a question, a judge and a store.

    Args:
        pairs: The dataset.
        judge: Who is asked.
        question: What is asked.
        folder: The store's; by default ``answers`` in the dataset's folder.
        both_orders: Ask about each pair in both orders; two verdicts that differ make a tie.
        notice: Told what the user should know.

    Raises:
        ConfigError: dataset, question and judge do not suit each other.
    """

    def __init__(
        self,
        pairs: Pairs,
        judge: Judge,
        question: Question,
        *,
        folder: Path | None = None,
        both_orders: bool = False,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.pairs, self.judge, self.question, self.both_orders = pairs, judge, question, both_orders
        refusal = judge.accepts(question)
        if question.world != pairs.world:
            refusal = (
                f"{pairs.folder} holds pairs of the world {pairs.world!r}, and the question is about "
                f"{question.world!r}"
            )
        if refusal is not None:
            raise ConfigError(refusal)
        identity = {"question": question.identity(judge.answer_format), "judge": judge.identity_about(question)}
        self.store = Store(folder or pairs.folder / ANSWERS, identity, notice)
        rows = pairs.comparisons(question.blstats)
        distinct: dict[tuple[str, Captions], int] = {}
        self._row_pair = np.full(len(rows), -1)  # (N,): number of the unordered pair; -1 for equal captions
        self._row_swapped = np.zeros(len(rows), bool)  # (N,)
        for row, pair in enumerate(rows):
            if pair.first != pair.second:
                swapped = pair.first > pair.second
                captions = (pair.second, pair.first) if swapped else (pair.first, pair.second)
                self._row_pair[row] = distinct.setdefault((pair.context, captions), len(distinct))
                self._row_swapped[row] = swapped
        self.distinct = list(distinct)
        """Each distinct unordered pair, with what both have in common."""

    @cached_property
    def _items(self) -> list[list[Item]]:
        """By number of the unordered pair, what is asked about it."""
        items = []
        for context, captions in self.distinct:
            # Which is shown first is a coin toss that every process repeats, so that a position bias cancels out.
            orders = (False, True) if self.both_orders else (_number(captions) % 2 == 1,)
            items.append(
                [Item(answer_key(self.store.hash, captions, o, context), captions, o, context) for o in orders]
            )
        return items

    def items(self, chunk: int = 0, chunks: int = 1) -> list[Item]:
        """What there is to ask about the pairs of a chunk.

        Raises:
            ConfigError: no such chunk.
        """
        if chunks < 1 or not 0 <= chunk < chunks:
            raise ConfigError(f"chunk {chunk} of {chunks}: chunks are numbered from 0 to {max(chunks - 1, 0)}")
        return [item for items in self._items if _number(items[0].captions) // 2 % chunks == chunk for item in items]

    def estimate(self, chunk: int = 0, chunks: int = 1) -> AnnotationEstimate:
        """What is left to do; asks nothing and writes nothing."""
        answers = self.store.read()
        items = self.items(chunk, chunks)
        missing = _missing(items, answers)
        known = [answers[item.key] for item in items if item.key in answers]
        if known:
            prompt = fmean(answer.prompt_tokens for answer in known)
            completion = fmean(answer.completion_tokens for answer in known)
            seconds: float | None = fmean(answer.seconds for answer in known)
        else:
            sample = missing[:: max(1, len(missing) // _SAMPLE)]
            lengths = [
                sum(len(turn["content"]) for turn in conversation(self.judge, self.question, item)) for item in sample
            ]
            prompt = fmean(lengths) / _CHARACTERS_PER_TOKEN if lengths else 0.0
            completion, seconds = self.judge.expected_tokens, self.judge.expected_seconds
        count = len(missing)
        return AnnotationEstimate(
            rows=len(self.pairs),
            identical=int((self._row_pair < 0).sum()),
            distinct=len(self.distinct),
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
        on_answer: Callable[[Answer | None], None] = lambda answer: None,
    ) -> Summary:
        """Ask what is missing of a chunk, and write the labels that all answers so far give.

        However it ends, short of a kill, the labels are written if there is any verdict; after a kill the same call
        does what is left.

        Args:
            name: The annotator's, in the dataset.
            chunk: Which share of the unordered pairs, from 0.
            chunks: How many shares there are.
            on_answer: Given each answer, or None for a request that failed.

        Raises:
            ConfigError: no such chunk, or ``name`` holds labels of another question.
            RunError: another process works on the chunk, or the judge cannot go on or is no good.
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
                # The last one to write has read the answers of all others.
                with self.store.alone():
                    summary = self._write(name, inquiry, time.monotonic() - began)
        return summary

    def labels(self, answers: Mapping[str, Answer]) -> tuple[NDArray[np.int8], NDArray[np.float32] | None]:
        """What answers say about the dataset's rows.

        Returns:
            Codes of `Preference`, int8 (N,); and probabilities of first, second and tie, float32 (N, 3), NaN where
            the judge gave none, or None if it gave none at all.
        """
        said = [_combine([answers.get(item.key) for item in items], items) for items in self._items]
        labels = np.full(len(self.pairs), Preference.TIE, np.int8)
        soft = np.full((len(self.pairs), 3), np.nan, np.float32)
        soft[self._row_pair < 0] = (0, 0, 1)
        for row in np.flatnonzero(self._row_pair >= 0):
            label, probabilities = said[self._row_pair[row]]
            swapped = bool(self._row_swapped[row])
            labels[row] = _oriented(label, swapped)
            if probabilities is not None:
                soft[row] = probabilities[[1, 0, 2]] if swapped else probabilities
        return labels, soft if any(probabilities is not None for _, probabilities in said) else None

    def _check_name(self, name: str) -> None:
        """Labels of another question, or from elsewhere, are not to be mixed or overwritten."""
        if name not in self.pairs.annotators():
            return
        made, account = self.pairs.read_account(name), self._account()
        if any(made.get(key) != value for key, value in account.items()):
            raise ConfigError(
                f"{self.pairs.folder} has labels {name!r} of another question, judge or sampling: choose another --name"
            )

    def _account(self) -> dict[str, Any]:
        return {"hash": self.store.hash, "both_orders": self.both_orders}

    def _write(self, name: str, inquiry: Inquiry, seconds: float) -> Summary:
        self._check_name(name)
        answers = self.store.read()
        labels, soft = self.labels(answers)
        summary = self._summary(answers, labels, inquiry, seconds)
        if not summary.written:  # the name stays free for another judge or sampling
            return summary
        # The account comes first: labels without one could not be gone on with.
        self.pairs.write_account(
            name, self._account() | {"asked": self.store.shared_question, "summary": asdict(summary)}
        )
        self.pairs.write_preferences(name, labels, soft)
        return summary

    def _summary(
        self, answers: Mapping[str, Answer], labels: NDArray[np.int8], inquiry: Inquiry, seconds: float
    ) -> Summary:
        answered = [answers[item.key] for items in self._items for item in items if item.key in answers]
        counts = Counter(answer.label for answer in answered)
        decided = counts["first"] + counts["second"]
        both = [
            [_oriented(answers[item.key].preference, item.swapped) for item in items]
            for items in self._items
            if len(items) == 2 and not _missing(items, answers)
        ]
        prompt, completion = (sum(a.prompt_tokens for a in answered), sum(a.completion_tokens for a in answered))
        return Summary(
            labels={code.name.lower(): int((labels == code).sum()) for code in Preference},
            distinct=len(self.distinct),
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


def _missing(items: Sequence[Item], answers: Mapping[str, Answer]) -> list[Item]:
    """Those without an answer, or with an invalid one."""
    return [item for item in items if item.key not in answers or answers[item.key].label == "invalid"]


def _oriented(preference: Preference, swapped: bool) -> Preference:
    return _SWAP.get(preference, preference) if swapped else preference


def _combine(answers: Sequence[Answer | None], items: Sequence[Item]) -> tuple[Preference, NDArray[np.float32] | None]:
    """The label of an unordered pair and its probabilities, for the sorted order."""
    labels, soft = [], []
    for answer, item in zip(answers, items, strict=True):
        if answer is None or answer.label == "invalid":
            return Preference.UNKNOWN, None
        labels.append(_oriented(answer.preference, item.swapped))
        if answer.probabilities is not None:
            first, second, tie = answer.probabilities
            soft.append((second, first, tie) if item.swapped else (first, second, tie))
    label = labels[0] if len(set(labels)) == 1 else Preference.TIE
    return label, np.mean(soft, axis=0, dtype=np.float32) if len(soft) == len(items) else None
