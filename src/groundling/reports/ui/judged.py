"""Pairs of segments with the judges' answers and disagreements."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from groundling.io.documents import DocumentError, lines_of, parse_json
from groundling.judges import open_pairs
from groundling.judges.preferences.pairs import Comparison, Preference

PAGE = 20  # pairs per page
LABELS = {"first": Preference.FIRST, "second": Preference.SECOND, "tie": Preference.TIE, "none": Preference.UNKNOWN}
"""Answers of a judge, by name."""


def select(folder: Path, query: Mapping[str, str], first: int) -> dict[str, Any]:
    """Return the template's data: one page of the selected pairs, starting at index ``first``, and judge statistics.

    ``query`` may specify a ``judge`` (default: the first), its answer ``label``, another judge ``against`` whose answer
    must differ, and ``words`` that must all occur in the pair's texts.
    """
    pairs = open_pairs(folder)
    labels = {name: pairs.preferences(name) for name in pairs.annotators()}
    comparisons = pairs.comparisons()
    chosen = np.ones(len(pairs), dtype=bool)
    judge = query.get("judge") or next(iter(labels), None)
    if judge is not None:
        of_judge = pairs.preferences(judge)
        if label := query.get("label"):
            chosen &= of_judge == LABELS[label]
        if against := query.get("against"):
            other = pairs.preferences(against)
            chosen &= _both_known(of_judge, other) & (of_judge != other)
    if words := query.get("words", "").lower().split():
        for number in np.flatnonzero(chosen):
            one = comparisons[number]
            text = f"{one.context}\n{one.first}\n{one.second}".lower()
            chosen[number] = all(word in text for word in words)
    numbers = np.flatnonzero(chosen)[first : first + PAGE].tolist()
    replies = _replies(folder, [comparisons[number] for number in numbers])
    soft = {name: probabilities for name in labels if (probabilities := pairs.soft_preferences(name)) is not None}
    names = {code: label for label, code in LABELS.items()}
    return {
        "judges": list(labels),
        "counts": {
            name: {label: int((of == code).sum()) for label, code in LABELS.items()} for name, of in labels.items()
        },
        "agreement": {  # share of equal labels among the pairs that both judges labelled
            (one, other): float((labels[one] == labels[other])[both].mean())
            for one, other in combinations(labels, 2)
            if (both := _both_known(labels[one], labels[other])).any()
        },
        "matching": int(chosen.sum()),
        "pairs": [
            {
                "number": number,
                "comparison": (one := comparisons[number]),
                "labels": {name: names[Preference(int(of[number]))] for name, of in labels.items()},
                "probabilities": {
                    name: of[number].tolist() for name, of in soft.items() if not np.isnan(of[number]).any()
                },
                "replies": replies.get(frozenset((one.first, one.second)), ()),
            }
            for number in numbers
        ],
    }


def _both_known(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first != Preference.UNKNOWN) & (second != Preference.UNKNOWN)


def _replies(folder: Path, comparisons: Sequence[Comparison]) -> dict[frozenset[str], list[str]]:
    """Return the judges' replies stored in the dataset, keyed by the pair of captions."""
    wanted = {frozenset((one.first, one.second)) for one in comparisons}
    found: dict[frozenset[str], list[str]] = {}
    for path in sorted((folder / "answers").rglob("*.jsonl")):
        for line in lines_of(path):
            try:
                row = parse_json(line, str(path))
            except DocumentError:
                continue  # the line is still being written
            captions = row.get("captions") if isinstance(row, dict) else None
            if isinstance(captions, list) and (pair := frozenset(map(str, captions))) in wanted:
                found.setdefault(pair, []).extend(map(str, row.get("replies") or ()))
    return found
