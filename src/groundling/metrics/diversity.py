"""Diversity of texts: the figures of GEM (Gehrmann et al. 2021, arXiv 2102.01672)."""

import math
import statistics
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from groundling.envs.text_generation.tasks import words
from groundling.fields import Ge
from groundling.metrics.metric import Figures, LexicalMetric, Meta, MetricResult, References, Texts, metrics

_PUNCTUATION = frozenset(string.punctuation)
_MAX_ORDER = 3


@metrics.register("diversity")
@dataclass(kw_only=True)
class Diversity(LexicalMetric):
    """Vocabulary, distinct n-grams, entropies and lengths of lower-cased words, with and without punctuation."""

    window_size: Annotated[int, Ge(1)] = 100
    """Words per segment of the mean segmental type-token ratio (MSTTR); NaN for shorter texts."""

    required_library = "nltk"

    def figure_names(self) -> Collection[str]:
        return self.measure([""], ["a"], [[]], None).keys()

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        texts = [[word.lower() for word in words(text)] for text in generations]
        is_punctuation = _PUNCTUATION.__contains__ if self.compat else _is_punctuation
        bare = [[word for word in text if not is_punctuation(word)] for text in texts]
        figures = {
            f"msttr-{self.window_size}": _msttr(texts, self.window_size),
            f"msttr-{self.window_size}_nopunct": _msttr(bare, self.window_size),
        }
        figures |= _lengths(texts) | _ngram_figures(texts)
        figures |= {f"{name}-nopunct": figure for name, figure in (_lengths(bare) | _ngram_figures(bare)).items()}
        return {f"diversity_metrics/{name}": MetricResult(float(figure)) for name, figure in figures.items()}


def _is_punctuation(word: str) -> bool:
    """Return True for a single punctuation character of any script."""
    return word in _PUNCTUATION or (len(word) == 1 and unicodedata.category(word)[0] == "P")


def _msttr(texts: Sequence[Sequence[str]], size: int) -> float:
    """Mean type-token ratio of segments of ``size`` words of the joined texts, to five decimals."""
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
    """Figures of the 1-, 2- and 3-grams of all texts; entropies in bits."""
    figures: dict[str, float] = {}
    shorter: Counter[tuple[str, ...]] = Counter()
    for order in range(1, _MAX_ORDER + 1):
        counts = Counter(
            tuple(text[start : start + order]) for text in texts for start in range(len(text) - order + 1)
        )
        total = counts.total()
        figures[f"distinct-{order}"] = len(counts) / total if total else 0
        figures[f"vocab_size-{order}"] = len(counts)
        figures[f"unique-{order}"] = sum(count == 1 for count in counts.values())
        figures[f"entropy-{order}"] = -sum(c / total * math.log2(c / total) for c in counts.values())
        if shorter:
            figures[f"cond_entropy-{order}"] = _conditional_entropy(counts, shorter)
        shorter = counts
    return figures


def _conditional_entropy(counts: Counter[tuple[str, ...]], shorter: Counter[tuple[str, ...]]) -> float:
    """H(last word | words before it), with counts divided by their order's total, as in van Miltenburg et al."""
    total, shorter_total = counts.total(), shorter.total()
    return -sum(
        count / total * math.log2((count / total) / (shorter[ngram[:-1]] / shorter_total))
        for ngram, count in counts.items()
    )
