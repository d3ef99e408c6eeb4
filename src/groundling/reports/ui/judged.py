"""Pairs of segments, what judges said of them, and where they disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from groundling.io.documents import DocumentError, lines_of, parse_json
from groundling.judges import open_pairs
from groundling.judges.preferences.labels import Preference
from groundling.judges.preferences.pairs import Comparison, Pairs

PAGE = 20
"""Pairs on a page."""
LABELS = {
    "first": Preference.FIRST,
    "second": Preference.SECOND,
    "tie": Preference.TIE,
    "none": Preference.UNKNOWN,
}
"""By what it is called, what a judge can have said."""


@dataclass(frozen=True)
class ShownPair:
    """A pair as the page shows it."""

    number: int
    comparison: Comparison
    labels: Mapping[str, str]
    """By judge."""
    probabilities: Mapping[str, Sequence[float]]
    """By judge, of first, second and tie, where it gave any."""
    replies: Sequence[str]
    """A judge's words about it, as they were kept."""


@dataclass(frozen=True)
class Selection:
    """Which pairs are asked for."""

    judge: str | None = None
    """Whose answers are filtered; None: the first judge's."""
    label: str | None = None
    """One of `LABELS`; None: whatever it said."""
    against: str | None = None
    """Only where this judge says otherwise; None: it does not matter."""
    words: str = ""
    """Only pairs whose captions have all of these words."""


@dataclass(frozen=True)
class Judged:
    """A dataset, a page of its pairs, and how its judges agree."""

    judges: Sequence[str]
    counts: Mapping[str, Mapping[str, int]]
    """By judge and label, how many pairs."""
    agreement: Mapping[tuple[str, str], float]
    """By two judges, the share of pairs of which both gave a label, and the same one."""
    matching: int
    """Pairs that were asked for."""
    pairs: Sequence[ShownPair]


def select(folder: Path, selection: Selection, first: int) -> Judged:
    """Pairs from the ``first`` of those that match on.

    Raises:
        ConfigError: the folder is no such dataset, or has no such judge.
    """
    pairs = open_pairs(folder)
    judges = pairs.annotators()
    labels = {name: pairs.preferences(name) for name in judges}
    comparisons = pairs.comparisons()
    chosen = np.ones(len(pairs), dtype=bool)
    judge = selection.judge or (judges[0] if judges else None)
    if judge is not None:
        of_judge = pairs.preferences(judge) if judge not in labels else labels[judge]
        if selection.label is not None:
            chosen &= of_judge == LABELS[selection.label]
        if selection.against is not None:
            other = pairs.preferences(selection.against)
            known = (of_judge != Preference.UNKNOWN) & (other != Preference.UNKNOWN)
            chosen &= known & (of_judge != other)
    words = selection.words.lower().split()
    if words:
        for number in np.flatnonzero(chosen):
            one = comparisons[number]
            text = f"{one.context}\n{one.first}\n{one.second}".lower()
            chosen[number] = all(word in text for word in words)
    numbers = np.flatnonzero(chosen)[first : first + PAGE].tolist()
    said = _replies(folder, [comparisons[number] for number in numbers])
    soft = {name: pairs.soft_preferences(name) for name in judges}
    return Judged(
        judges,
        {
            name: {label: int((of == code).sum()) for label, code in LABELS.items()}
            for name, of in labels.items()
        },
        _agreement(labels),
        int(chosen.sum()),
        [_shown(pairs, number, comparisons[number], labels, soft, said) for number in numbers],
    )


def _shown(
    pairs: Pairs,
    number: int,
    comparison: Comparison,
    labels: Mapping[str, np.ndarray],
    soft: Mapping[str, np.ndarray | None],
    said: Mapping[frozenset[str], Sequence[str]],
) -> ShownPair:
    names = {code: label for label, code in LABELS.items()}
    probabilities = {
        name: of[number].tolist()
        for name, of in soft.items()
        if of is not None and not np.isnan(of[number]).any()
    }
    told = {name: names[Preference(int(of[number]))] for name, of in labels.items()}
    replies = said.get(frozenset((comparison.first, comparison.second)), ())
    return ShownPair(number, comparison, told, probabilities, replies)


def _agreement(labels: Mapping[str, np.ndarray]) -> dict[tuple[str, str], float]:
    shares = {}
    names = list(labels)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            known = (labels[one] != Preference.UNKNOWN) & (labels[other] != Preference.UNKNOWN)
            if known.any():
                shares[one, other] = float((labels[one] == labels[other])[known].mean())
    return shares


def _replies(folder: Path, comparisons: Sequence[Comparison]) -> dict[frozenset[str], list[str]]:
    """By the two captions, what the answers of the dataset's stores hold of a judge's words."""
    wanted = {frozenset((one.first, one.second)) for one in comparisons}
    said: dict[frozenset[str], list[str]] = {}
    for path in sorted((folder / "answers").rglob("*.jsonl")):
        for line in lines_of(path):
            try:
                row = parse_json(line, str(path))
            except DocumentError:
                continue  # it is being written
            captions = row.get("captions") if isinstance(row, dict) else None
            if isinstance(captions, list) and (pair := frozenset(map(str, captions))) in wanted:
                said.setdefault(pair, []).extend(map(str, row.get("replies") or ()))
    return said
