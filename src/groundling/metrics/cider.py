"""CIDEr (Vedantam et al. 2015) and SPICE (Anderson et al. 2016), which were made for captions."""

import functools
import importlib.util
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groundling.errors import GroundlingError, RunError
from groundling.metrics.libraries import check_library, library
from groundling.metrics.metric import Meta, Metric, MetricResult, mean_of, metrics

_MAX_ORDER = 4
_SIGMA = 6.0
_SCALE = 10.0

Vector = dict[tuple[str, ...], float]


@metrics.register("cider")
@dataclass(kw_only=True)
class Cider(Metric):
    """CIDEr-D of spaCy's words: cosine of n-gram vectors weighted by rarity, times 10.

    Rarity is measured over the references of the samples given, so the figure of a small batch says little, and of
    a single sample it is 0. The original kept samples by prompt, so that of those with equal prompts only the last
    remained, and failed where all references were empty: both with ``compat``. The others then have the score of the
    one that remained.
    """

    needs_references = True
    by_sample = False

    def check(self) -> None:
        """The library spaCy."""
        check_library("spacy", "metrics")

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``lexical/cider``."""
        by_prompt = {prompt: i for i, prompt in enumerate(prompts)}
        kept = list(by_prompt.values() if self.compat else range(len(prompts)))
        written = [_ngrams(generations[i]) for i in kept]
        given = [[_ngrams(text) for text in references[i]] for i in kept]
        frequency = Counter(ngram for texts in given for ngram in set().union(*texts))
        if self.compat and not frequency:
            raise RunError(f"with compat={self.compat} Cider needs a reference that is not empty")
        num_documents = len(kept)
        scores = [
            sum(_similarity(text, reference, frequency, num_documents) for reference in texts) / len(texts)
            for text, texts in zip(written, given, strict=True)
        ]
        result = mean_of(scores)
        if self.compat:
            score_of = dict(zip(by_prompt, scores, strict=True))
            result = MetricResult(result.corpus, [score_of[prompt] for prompt in prompts])
        return {"lexical/cider": result}


def _ngrams(text: str) -> Counter[tuple[str, ...]]:
    tokens = [token.text for token in _spacy()(text)]
    tokens = " ".join(tokens).split()  # line breaks are tokens of spaCy's, but no words
    return Counter(
        tuple(tokens[start : start + order])
        for order in range(1, _MAX_ORDER + 1)
        for start in range(len(tokens) - order + 1)
    )


@functools.cache
def _spacy() -> Any:
    return library("spacy", "metrics").blank("en")


def _similarity(
    written: Counter[tuple[str, ...]],
    reference: Counter[tuple[str, ...]],
    frequency: Counter[tuple[str, ...]],
    num_documents: int,
) -> float:
    """Mean over n = 1 … 4 of the clipped cosine, damped where lengths differ, times 10 (CIDEr-D, section 6)."""

    def vector(counts: Counter[tuple[str, ...]], order: int) -> Vector:
        return {
            ngram: count * math.log(num_documents / max(1, frequency[ngram]))
            for ngram, count in counts.items()
            if len(ngram) == order
        }

    difference = _num_words(written) - _num_words(reference)
    damping = math.exp(-(difference**2) / (2 * _SIGMA**2))
    cosines = [_clipped_cosine(vector(written, n), vector(reference, n)) for n in range(1, _MAX_ORDER + 1)]
    return _SCALE * damping * sum(cosines) / _MAX_ORDER


def _num_words(counts: Counter[tuple[str, ...]]) -> int:
    return sum(count for ngram, count in counts.items() if len(ngram) == 1)


def _clipped_cosine(written: Vector, reference: Vector) -> float:
    """Cosine, but an n-gram repeated more often than in the reference gains nothing."""
    product = sum(min(weight, reference[n]) * reference[n] for n, weight in written.items() if n in reference)
    norms = math.sqrt(sum(w * w for w in written.values()) * sum(w * w for w in reference.values()))
    return product / norms if norms else 0.0


@metrics.register("spice")
@dataclass(kw_only=True)
class Spice(Metric):
    """SPICE of pycocoevalcap: F-score of the scene graphs of generation and references; needs Java.

    The library downloads Stanford CoreNLP when it first runs.
    """

    needs_references = True

    def check(self) -> None:
        """Java and pycocoevalcap."""
        if shutil.which("java") is None:
            raise GroundlingError(
                "SPICE needs Java: apt install default-jre-headless (and pip install pycocoevalcap)"
            )
        if importlib.util.find_spec("pycocoevalcap") is None:
            raise GroundlingError("SPICE needs pycocoevalcap: pip install pycocoevalcap")

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``lexical/spice``."""
        self.check()
        from pycocoevalcap.spice.spice import Spice as Scorer

        ids = range(len(generations))
        _, scores = Scorer().compute_score(
            {i: list(references[i]) for i in ids}, {i: [generations[i]] for i in ids}
        )
        return {"lexical/spice": mean_of([float(score["All"]["f"]) for score in scores])}
