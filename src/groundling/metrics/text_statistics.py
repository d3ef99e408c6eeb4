"""Text metrics without references: diversity, and two synthetic tasks that models learn quickly."""

import contextlib
import math
import re
import statistics
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from groundling.envs.text_generation.tasks import words
from groundling.fields import Ge
from groundling.metrics.metric import (
    Figures,
    LexicalMetric,
    Meta,
    Metric,
    MetricResult,
    References,
    Texts,
    mean_of,
    metrics,
)
from groundling.metrics.tokens import ngrams

_PUNCTUATION = frozenset(string.punctuation)
_MAX_ORDER = 3
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@metrics.register("diversity")
@dataclass(kw_only=True)
class Diversity(LexicalMetric):
    """Vocabulary, distinct n-grams, entropies and text lengths in lowercased words, with and without punctuation.
    From GEM (Gehrmann et al. 2021, arXiv 2102.01672).
    """

    window_size: Annotated[int, Ge(1)] = 100
    """Words per segment of the mean segmental type-token ratio (MSTTR), which is NaN if there are fewer words."""

    required_library = "nltk"

    def figure_names(self) -> Collection[str]:
        return self.measure([""], ["a"], [[]], None).keys()

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        texts = [[word.lower() for word in words(text)] for text in generations]
        marks = {*_PUNCTUATION}
        if not self.compat:  # also a single punctuation character in any script
            marks |= {w for text in texts for w in text if len(w) == 1 and unicodedata.category(w)[0] == "P"}
        bare = [[word for word in text if word not in marks] for text in texts]
        figures = {
            f"msttr-{self.window_size}": _msttr(texts, self.window_size),
            f"msttr-{self.window_size}_nopunct": _msttr(bare, self.window_size),
        }
        figures |= _lengths(texts) | _ngram_figures(texts)
        figures |= {f"{name}-nopunct": figure for name, figure in (_lengths(bare) | _ngram_figures(bare)).items()}
        return {f"diversity_metrics/{name}": MetricResult(float(figure)) for name, figure in figures.items()}


def _msttr(texts: Sequence[Sequence[str]], size: int) -> float:
    """Return the mean type-token ratio of ``size``-word segments of the joined texts, to five decimals."""
    joined = [word for text in texts for word in text]
    ratios = [len(set(joined[start : start + size])) / size for start in range(0, len(joined) - size + 1, size)]
    return round(statistics.fmean(ratios), 5) if ratios else math.nan


def _lengths(texts: Sequence[Sequence[str]]) -> dict[str, float]:
    lengths = list(map(len, texts))
    return {
        "total_length": sum(lengths),
        "mean_pred_length": statistics.fmean(lengths),
        "std_pred_length": statistics.pstdev(lengths),
        "median_pred_length": statistics.median(lengths),
        "min_pred_length": min(lengths),
        "max_pred_length": max(lengths),
    }


def _ngram_figures(texts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return statistics of the 1-, 2- and 3-grams of all texts; entropies are in bits."""
    figures: dict[str, float] = {}
    shorter: Counter[tuple[str, ...]] = Counter()
    for order in range(1, _MAX_ORDER + 1):
        counts = Counter[tuple[str, ...]]()
        for text in texts:
            counts.update(ngrams(text, order))
        total = counts.total()
        figures[f"distinct-{order}"] = len(counts) / total if total else 0
        figures[f"vocab_size-{order}"] = len(counts)
        figures[f"unique-{order}"] = sum(count == 1 for count in counts.values())
        figures[f"entropy-{order}"] = -sum(c / total * math.log2(c / total) for c in counts.values())
        if shorter:
            # H(last word | words before it), with counts divided by their order's total (van Miltenburg et al.)
            figures[f"cond_entropy-{order}"] = -sum(
                c / total * math.log2((c / total) / (shorter[ngram[:-1]] / shorter.total()))
                for ngram, c in counts.items()
            )
        shorter = counts
    return figures


@metrics.register("increasing_numbers")
@dataclass(kw_only=True)
class IncreasingNumbers(Metric):
    """Number of leading numbers in strictly increasing order, divided by the number of words."""

    min_tokens: Annotated[int, Ge(1)] = 20
    """A text is treated as having at least half this many words."""

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        words = [text.split() for text in generations]
        scores = [_num_increasing(text) / max(len(text), self.min_tokens / 2) for text in words]
        return {"synthetic/increasing_numbers_in_text": mean_of(scores)}


def _num_increasing(tokens: Sequence[str]) -> int:
    numbers: list[float] = []
    for token in tokens:
        with contextlib.suppress(ValueError):
            number = float(token)
            if numbers and not number > numbers[-1]:  # not <=, which is False for NaN
                break
            numbers.append(number)
    return len(numbers)


@metrics.register("dates")
@dataclass(kw_only=True)
class Dates(Metric):
    """1 if a text contains a date in the format YYYY-MM-DD (such as 2020-01-31), else 0."""

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        return {"synthetic/dates_in_text": mean_of([float(bool(_DATE.search(text))) for text in generations])}
