"""Pairs of segments, judges' answers, and disagreements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from groundling.io.documents import DocumentError, lines_of, parse_json
from groundling.judges import open_pairs
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.pairs import Comparison

PAGE = 20
"""Pairs on a page."""
LABELS = {"first": Preference.FIRST, "second": Preference.SECOND, "tie": Preference.TIE, "none": Preference.UNKNOWN}
"""Answers of a judge, by name."""


@dataclass(frozen=True)
class ShownPair:
    """A pair of segments."""

    number: int
    comparison: Comparison
    labels: Mapping[str, str]
    """By judge."""
    probabilities: Mapping[str, Sequence[float]]
    """By judge, of first, second and tie, if it gave them."""
    replies: Sequence[str]
    """Texts of a judge."""


@dataclass(frozen=True)
class Selection:
    """A filter of pairs."""

    judge: str | None = None
    """The judge whose answers are filtered; None: the first."""
    label: str | None = None
    """One of `LABELS`; None: any."""
    against: str | None = None
    """A judge with another answer; None: no condition."""
    words: str = ""
    """Words that all occur in the captions."""


@dataclass(frozen=True)
class Judged:
    """A page of a dataset's pairs, with statistics of its judges."""

    judges: Sequence[str]
    counts: Mapping[str, Mapping[str, int]]
    """Number of pairs by judge and label."""
    agreement: Mapping[tuple[str, str], float]
    """By two judges, the share of equal labels among the pairs that both labelled."""
    matching: int
    """Number of selected pairs."""
    pairs: Sequence[ShownPair]


def select(folder: Path, selection: Selection, first: int) -> Judged:
    """Return a page of the selected pairs, from number ``first``.

    Raises:
        ConfigError: the folder is no dataset of pairs, or has no such judge.
    """
    pairs = open_pairs(folder)
    labels = {name: pairs.preferences(name) for name in pairs.annotators()}
    comparisons = pairs.comparisons()
    chosen = np.ones(len(pairs), dtype=bool)
    judge = selection.judge or next(iter(labels), None)
    if judge is not None:
        of_judge = pairs.preferences(judge)
        if selection.label is not None:
            chosen &= of_judge == LABELS[selection.label]
        if selection.against is not None:
            other = pairs.preferences(selection.against)
            known = (of_judge != Preference.UNKNOWN) & (other != Preference.UNKNOWN)
            chosen &= known & (of_judge != other)
    if words := selection.words.lower().split():
        for number in np.flatnonzero(chosen):
            one = comparisons[number]
            text = f"{one.context}\n{one.first}\n{one.second}".lower()
            chosen[number] = all(word in text for word in words)
    numbers = np.flatnonzero(chosen)[first : first + PAGE].tolist()
    replies = _replies(folder, [comparisons[number] for number in numbers])
    soft = {name: pairs.soft_preferences(name) for name in labels}
    names = {code: label for label, code in LABELS.items()}

    def shown(number: int) -> ShownPair:
        one = comparisons[number]
        return ShownPair(
            number,
            one,
            {name: names[Preference(int(of[number]))] for name, of in labels.items()},
            {
                name: of[number].tolist()
                for name, of in soft.items()
                if of is not None and not np.isnan(of[number]).any()
            },
            replies.get(frozenset((one.first, one.second)), ()),
        )

    counts = {name: {label: int((of == code).sum()) for label, code in LABELS.items()} for name, of in labels.items()}
    return Judged(list(labels), counts, _agreement(labels), int(chosen.sum()), [shown(n) for n in numbers])


def _agreement(labels: Mapping[str, np.ndarray]) -> dict[tuple[str, str], float]:
    shares = {}
    for one, other in combinations(labels, 2):
        known = (labels[one] != Preference.UNKNOWN) & (labels[other] != Preference.UNKNOWN)
        if known.any():
            shares[one, other] = float((labels[one] == labels[other])[known].mean())
    return shares


def _replies(folder: Path, comparisons: Sequence[Comparison]) -> dict[frozenset[str], list[str]]:
    """Judges' texts in the dataset's stores of answers, by the two captions."""
    wanted = {frozenset((one.first, one.second)) for one in comparisons}
    found: dict[frozenset[str], list[str]] = {}
    for path in sorted((folder / "answers").rglob("*.jsonl")):
        for line in lines_of(path):
            try:
                row = parse_json(line, str(path))
            except DocumentError:
                continue  # it is being written
            captions = row.get("captions") if isinstance(row, dict) else None
            if isinstance(captions, list) and (pair := frozenset(map(str, captions))) in wanted:
                found.setdefault(pair, []).extend(map(str, row.get("replies") or ()))
    return found
