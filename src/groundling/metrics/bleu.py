"""Metrics that count what generation and references share, over a corpus: BLEU, TER, chrF."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from groundling.errors import ConfigError, RunError
from groundling.metrics.libraries import check_library, library
from groundling.metrics.metric import LexicalMetric, Meta, MetricResult, metrics

_MAX_ORDER = 4


@metrics.register("bleu")
@dataclass(kw_only=True)
class Bleu(LexicalMetric):
    """BLEU-4 of words between spaces, without smoothing, as TensorFlow's translation example computed it.

    The shortest reference counts for the length. Where nothing was written, or nothing but empty references are
    there, it is 0 (with ``compat`` undefined, NaN). Report `sacre_bleu`, which cuts words in a standard way.
    """

    needs_references = True

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``lexical/bleu``."""
        matched, written, length, reference_length = [0] * _MAX_ORDER, [0] * _MAX_ORDER, 0, 0
        for generation, given in zip(generations, references, strict=True):
            tokens = generation.split()
            length += len(tokens)
            reference_length += min(len(text.split()) for text in given)
            counts, there = _ngrams(tokens), Counter[tuple[str, ...]]()
            for text in given:
                there |= _ngrams(text.split())
            for order in range(_MAX_ORDER):
                written[order] += max(0, len(tokens) - order)
            for ngram, count in (counts & there).items():
                matched[len(ngram) - 1] += count
        if not length or not reference_length:
            return {"lexical/bleu": MetricResult(math.nan if self.compat else 0.0)}
        if not all(matched):
            return {"lexical/bleu": MetricResult(0.0)}
        precision = sum(math.log(m / w) for m, w in zip(matched, written, strict=True)) / _MAX_ORDER
        brevity = min(0.0, 1 - reference_length / length)
        return {"lexical/bleu": MetricResult(math.exp(precision + brevity))}


def _ngrams(tokens: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Counts of all n-grams up to 4."""
    return Counter(
        tuple(tokens[start : start + order])
        for order in range(1, _MAX_ORDER + 1)
        for start in range(len(tokens) - order + 1)
    )


@dataclass(kw_only=True)
class _SacreBleuMetric(LexicalMetric):
    """A corpus metric of the library sacrebleu, divided by 100.

    Samples may have different numbers of references; with ``compat`` they may not, as in the original.
    """

    needs_references = True

    @abstractmethod
    def scorer(self) -> tuple[str, Any]:
        """The name of the figure, and sacrebleu's object that computes it."""

    def check(self) -> None:
        """The library sacrebleu."""
        check_library("sacrebleu", "metrics")

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """The figure of the corpus."""
        name, scorer = self.scorer()
        most = max(map(len, references))
        if self.compat and any(len(given) != most for given in references):
            raise RunError(
                f"with compat={self.compat} {type(self).__name__} needs the same number of references for each sample"
            )
        streams = [[given[i] if i < len(given) else None for given in references] for i in range(most)]
        return {name: MetricResult(scorer.corpus_score(list(generations), streams).score / 100)}


@metrics.register("sacre_bleu")
@dataclass(kw_only=True)
class SacreBleu(_SacreBleuMetric):
    """BLEU of sacrebleu (Post 2018): the one to report."""

    tokenize: str | None = None
    """Tokenizer of sacrebleu ("13a", "intl", "zh", "char", …). null: 13a, after splitting scripts without spaces into
    characters (for Chinese this equals "zh")."""
    smooth_method: Literal["none", "floor", "add-k", "exp"] = "exp"
    smooth_value: float | None = None
    lowercase: bool = False
    effective_order: bool = False
    """Leave out orders of which a short text has no n-gram: choose it when single texts are scored, as rewards are."""

    @property
    def splits_characters(self) -> bool:
        return self.tokenize is None and super().splits_characters

    def scorer(self) -> tuple[str, Any]:
        """``lexical/sacrebleu``."""
        bleu = library("sacrebleu.metrics", "metrics").BLEU
        return "lexical/sacrebleu", _made(
            bleu,
            tokenize=self.tokenize,
            smooth_method=self.smooth_method,
            smooth_value=self.smooth_value,
            lowercase=self.lowercase,
            effective_order=self.effective_order,
        )


@metrics.register("ter")
@dataclass(kw_only=True)
class Ter(_SacreBleuMetric):
    """Translation edit rate (Snover et al. 2006): edits by reference words; 0 is best, more than 1 is possible."""

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False

    @property
    def splits_characters(self) -> bool:
        return not self.asian_support and super().splits_characters

    def scorer(self) -> tuple[str, Any]:
        """``lexical/ter``."""
        ter = library("sacrebleu.metrics", "metrics").TER
        return "lexical/ter", ter(
            normalized=self.normalized,
            no_punct=self.no_punct,
            asian_support=self.asian_support,
            case_sensitive=self.case_sensitive,
        )


@metrics.register("chrf")
@dataclass(kw_only=True)
class Chrf(_SacreBleuMetric):
    """chrF (Popović 2015): F-score of character n-grams; with ``word_order=2`` chrF++."""

    char_order: int = 6
    word_order: int = 0
    beta: int = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False

    @property
    def splits_characters(self) -> bool:
        return not self.whitespace and super().splits_characters

    def scorer(self) -> tuple[str, Any]:
        """``lexical/chrf``."""
        if self.char_order < 1 or self.word_order < 0:
            raise ConfigError(
                f"chrf needs a char_order of at least 1 and a word_order of at least 0, got {self.char_order} and "
                f"{self.word_order}"
            )
        chrf = library("sacrebleu.metrics", "metrics").CHRF
        return "lexical/chrf", chrf(
            char_order=self.char_order,
            word_order=self.word_order,
            beta=self.beta,
            lowercase=self.lowercase,
            whitespace=self.whitespace,
            eps_smoothing=self.eps_smoothing,
        )


def _made(scorer: Any, **options: Any) -> Any:
    try:
        return scorer(**options)
    except (AssertionError, KeyError, ValueError, RuntimeError, ImportError) as error:  # the last two: no tokenizer
        raise ConfigError(f"sacrebleu takes none of {options}: {error or type(error).__name__}") from error
