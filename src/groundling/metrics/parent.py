"""PARENT (Dhingra et al. 2019, arXiv 1906.01081), for texts generated from tables."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from groundling.errors import RunError
from groundling.fields import Ge, Gt, Le
from groundling.metrics.metric import (
    Figures,
    LexicalMetric,
    Meta,
    References,
    RewardOptions,
    Texts,
    library,
    mean_of,
    metrics,
)
from groundling.metrics.tokens import ngrams, spaced

_MAX_ORDER = 4
_TINY = 1e-8  # Avoids division by zero in the F-score of two zeros, as in the authors' code

Words = tuple[str, ...]
_FIGURES = ("precision", "recall", "f_score")


@metrics.register("parent_totto")
@dataclass(kw_only=True)
class Parent(LexicalMetric):
    """Precision, recall and F-score against a reference and the table, for the reference with the best F-score.
    Texts are lowercased and tokenised with mteval's 13a. The table is ``meta[…]["raw_table"]`` (or ``["table"]``):
    either ToTTo's mapping, whose titles and highlighted cells are used, or (attribute, value) pairs.
    """

    lambda_weight: Annotated[float | None, Ge(0), Le(1)] = None
    """Weight of the table in recall. If null, the share of the table that the reference omits."""
    smoothing: Annotated[float, Gt(0)] = 1e-5
    """Replaces a precision or recall of 0, except for the precision of single words."""

    needs_references = True
    required_library = "sacrebleu"
    reward_options = RewardOptions(key="table_to_text/parent_overall_f_score")

    def figure_names(self) -> Collection[str]:
        return [f"table_to_text/parent_overall_{name}" for name in _FIGURES]

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        rows = []
        for index, (generation, given) in enumerate(zip(generations, references, strict=True)):
            values = [
                _words(spaced(value) if self.splits_characters else value)
                for value in table_values((meta or {index: {}})[index], index)
            ]
            scores = (self._score(_words(generation), _words(text), values) for text in given)
            rows.append(max(scores, key=lambda score: score[-1]))
        columns = zip(*rows, strict=True)
        return {name: mean_of(column) for name, column in zip(self.figure_names(), columns, strict=True)}

    def _score(self, generation: Words, reference: Words, values: Sequence[Words]) -> tuple[float, float, float]:
        """Return precision, recall and F-score against one reference (sections 3.1 to 3.3 of the paper)."""
        in_table = {word for value in values for word in value}
        precisions, recalls = [], []
        for order in range(1, _MAX_ORDER + 1):
            written, wanted = ngrams(generation, order), ngrams(reference, order)
            precisions.append(_entailed_precision(written, wanted, in_table))
            recalls.append(_recall(written, wanted, in_table))
        precisions[1:] = [precision or self.smoothing for precision in precisions[1:]]
        recalls[1:] = [recall or self.smoothing for recall in recalls[1:]]
        precision = _geometric_mean(precisions)
        reference_recall = _geometric_mean(recalls) or self.smoothing
        table_recall = _mentioned(values, generation) or self.smoothing
        weight = 1 - _mentioned(values, reference) if self.lambda_weight is None else self.lambda_weight
        recall = reference_recall ** (1 - weight) * table_recall**weight
        return precision, recall, 2 * precision * recall / (precision + recall + _TINY)


def _words(text: str) -> Words:
    tokenizer = library("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()
    return tuple(tokenizer(text.lower()).split())


def _overlap(ngram: Words, in_table: set[str]) -> float:
    """Share of the n-gram's words that are in the table: the probability that the table entails them (equation 3)."""
    return sum(word in in_table for word in ngram) / len(ngram)


def _entailed_precision(written: Counter[Words], wanted: Counter[Words], in_table: set[str]) -> float:
    """Share of generated n-grams entailed by the reference or the table (equation 2); 0 if there are no n-grams."""
    entailed = 0.0
    for ngram, count in written.items():
        in_reference = min(1.0, wanted[ngram] / count)
        entailed += count * (in_reference + (1 - in_reference) * _overlap(ngram, in_table))
    return entailed / written.total() if written else 0.0


def _recall(written: Counter[Words], wanted: Counter[Words], in_table: set[str]) -> float:
    """Share of the reference's n-grams that were generated, weighted by `_overlap`; 1 if there are no n-grams."""
    weights = {ngram: count * _overlap(ngram, in_table) for ngram, count in wanted.items()}
    total = sum(weights.values())
    recalled = sum(weight * min(1.0, written[ngram] / wanted[ngram]) for ngram, weight in weights.items())
    return recalled / total if total else 1.0


def _mentioned(values: Sequence[Words], text: Words) -> float:
    """Mean share of a table value's words that occur in ``text`` in order (equation 6)."""
    shares = [_longest_common_subsequence(value, text) / len(value) for value in values if value]
    return sum(shares) / len(shares) if shares else 0.0


def _longest_common_subsequence(first: Words, second: Words) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for index, other in enumerate(second, start=1):
            longest = diagonal + 1 if word == other else max(lengths[index], lengths[index - 1])
            diagonal, lengths[index] = lengths[index], longest
    return lengths[-1]


def _geometric_mean(shares: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, shares)) / len(shares)) if all(shares) else 0.0


def table_values(meta: Mapping[str, Any], index: int) -> list[str]:
    """Return the values of the table in a sample's ``meta``; raise `RunError` if it is missing or malformed."""
    table = meta.get("raw_table", meta.get("table"))
    try:
        if isinstance(table, Mapping):
            return list(_totto_values(table))
        if not table:
            raise KeyError("raw_table")
        return [str(value) for _, value in table]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RunError(
            f"Parent needs meta['raw_table'] for every sample, in ToTTo's format or as [[attribute, value], …]: "
            f"sample {index} has {str(table)[:60]}"
        ) from error


def _totto_values(table: Mapping[str, Any]) -> Iterable[str]:
    """Yield the page title, the section title and the highlighted cells, or all cells if none is highlighted."""
    yield from (table[key] for key in ("table_page_title", "table_section_title") if table.get(key))
    rows = table["table"]
    cells = [rows[row][column] for row, column in table.get("highlighted_cells") or ()]
    for cell in cells or [cell for row in rows for cell in row if not cell["is_header"]]:
        if cell["value"]:
            yield str(cell["value"])
