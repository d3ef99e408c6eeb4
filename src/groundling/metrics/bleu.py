"""Metrics that count what generation and references share, over a corpus: BLEU, TER, chrF."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from groundling.errors import ConfigError, RunError
from groundling.fields import Ge
from groundling.metrics.libraries import library
from groundling.metrics.metric import LexicalMetric, RewardOptions, metrics
from groundling.metrics.scorer import Figures, Meta, MetricResult, References, Texts

_MAX_ORDER = 4


@metrics.register("bleu")
@dataclass(kw_only=True)
class Bleu(LexicalMetric):
    """BLEU-4 of words between spaces, without smoothing, as in TensorFlow's translation example; report `sacre_bleu`.
    The length is the shortest reference's. If all texts or all references are empty, it is 0 (with ``compat`` NaN).
    """

    needs_references = True

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        matched, written, length, reference_length = [0] * _MAX_ORDER, [0] * _MAX_ORDER, 0, 0
        for generation, given in zip(generations, references, strict=True):
            tokens = generation.split()
            length += len(tokens)
            reference_length += min(len(text.split()) for text in given)
            counts, available = ngrams(tokens), Counter[tuple[str, ...]]()
            for text in given:
                available |= ngrams(text.split())
            for order in range(_MAX_ORDER):
                written[order] += max(0, len(tokens) - order)
            for ngram, count in (counts & available).items():
                matched[len(ngram) - 1] += count
        if not length or not reference_length:
            return {"lexical/bleu": MetricResult(math.nan if self.compat else 0.0)}
        if not all(matched):
            return {"lexical/bleu": MetricResult(0.0)}
        precision = sum(math.log(m / w) for m, w in zip(matched, written, strict=True)) / _MAX_ORDER
        brevity = min(0.0, 1 - reference_length / length)
        return {"lexical/bleu": MetricResult(math.exp(precision + brevity))}


def ngrams(tokens: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count all n-grams up to 4."""
    return Counter(
        tuple(tokens[start : start + order])
        for order in range(1, _MAX_ORDER + 1)
        for start in range(len(tokens) - order + 1)
    )


@dataclass(kw_only=True)
class SacreBleuMetric(LexicalMetric):
    """A corpus metric of the library sacrebleu, divided by 100; its fields are the arguments of sacrebleu's class.
    With ``compat`` all samples need the same number of references.
    """

    needs_references = True
    required_library = "sacrebleu"
    figure = ""
    library_class = ""

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "compat"}
        try:
            scorer = getattr(library("sacrebleu.metrics"), self.library_class)(**options)
        except (AssertionError, KeyError, ValueError, RuntimeError, ImportError) as error:
            # A tokenizer that is not installed raises one of the last two.
            raise ConfigError(f"sacrebleu rejects {options}: {error or type(error).__name__}") from error
        if self.compat and len(set(map(len, references))) > 1:
            raise RunError(
                f"with compat={self.compat} {self.name} needs the same number of references for each sample"
            )
        return {self.figure: MetricResult(corpus_score(scorer, generations, references))}


def corpus_score(scorer: Any, generations: Texts, references: References) -> float:
    """Score of a metric of sacrebleu, which takes all first references, all second ones and so on; divided by 100."""
    streams = list(itertools.zip_longest(*references))
    return float(scorer.corpus_score(list(generations), streams).score / 100)


@metrics.register("sacre_bleu")
@dataclass(kw_only=True)
class SacreBleu(SacreBleuMetric):
    """BLEU of sacrebleu (Post 2018): the one to report."""

    tokenize: str | None = None
    """Tokenizer of sacrebleu ("13a", "intl", "zh", "char", …). null: 13a, after splitting scripts without spaces into
    characters (for Chinese this equals "zh")."""
    smooth_method: Literal["none", "floor", "add-k", "exp"] = "exp"
    smooth_value: float | None = None
    lowercase: bool = False
    effective_order: bool = False
    """Leave out orders of which a short text has no n-gram: for scores of single texts, such as rewards."""

    figure = "lexical/sacrebleu"
    library_class = "BLEU"

    @property
    def splits_characters(self) -> bool:
        return self.tokenize is None and super().splits_characters


@metrics.register("ter")
@dataclass(kw_only=True)
class Ter(SacreBleuMetric):
    """Translation edit rate (Snover et al. 2006): edits per reference word; 0 is best. As a reward it is 1 - TER."""

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False

    figure = "lexical/ter"
    library_class = "TER"
    reward_options = RewardOptions(scale=-1.0, offset=1.0)

    @property
    def splits_characters(self) -> bool:
        return not self.asian_support and super().splits_characters


@metrics.register("chrf")
@dataclass(kw_only=True)
class Chrf(SacreBleuMetric):
    """chrF (Popović 2015): F-score of character n-grams; with ``word_order=2`` chrF++."""

    char_order: Annotated[int, Ge(1)] = 6
    word_order: Annotated[int, Ge(0)] = 0
    beta: int = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False

    figure = "lexical/chrf"
    library_class = "CHRF"

    @property
    def splits_characters(self) -> bool:
        return not self.whitespace and super().splits_characters


@metrics.register("bleu_totto")
@dataclass(kw_only=True)
class BleuTotto(LexicalMetric):
    """BLEU of ToTTo's script: tokenizer 13a, lower case, no smoothing, the closest reference's length."""

    needs_references = True
    required_library = "sacrebleu"

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        bleu = library("sacrebleu.metrics").BLEU
        scorer = bleu(tokenize="13a", lowercase=True, smooth_method="none")
        return {"table_to_text/bleu_overall": MetricResult(corpus_score(scorer, generations, references))}
