"""CIDEr (Vedantam et al. 2015) and SPICE (Anderson et al. 2016), metrics of captions."""

import functools
import importlib.util
import math
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.metrics.bleu import ngrams
from groundling.metrics.libraries import check_library, library
from groundling.metrics.metric import LexicalMetric, Metric, metrics
from groundling.metrics.scorer import Document, Figures, Meta, MetricResult, References, Texts, mean_of
from groundling.metrics.tokens import spaced

_MAX_ORDER = 4
_SIGMA = 6.0
_SCALE = 10.0
_MOST_DOCUMENTS = 20_000
"""Of a larger split every k-th sample is counted, to save memory."""

Vector = dict[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Document frequencies of n-grams."""

    counts: Counter[tuple[str, ...]]
    num_documents: int

    def rarity(self, ngram: tuple[str, ...]) -> float:
        """Logarithm of the inverse document frequency."""
        return math.log(self.num_documents / max(1, self.counts[ngram]))


@metrics.register("cider")
@dataclass(kw_only=True)
class Cider(LexicalMetric):
    """CIDEr-D of spaCy's words: cosine of n-gram vectors weighted by inverse document frequency, times 10.

    A document is the references of a prompt. Frequencies are those of ``corpus``, else of the split of a run's pool,
    else of the samples measured together.

    With ``compat`` they are always those of the samples measured together; of samples with equal prompts only the last
    counts, and a single prompt gives 0.
    """

    corpus: References | None = None
    """References of at least two prompts, in which document frequencies are counted."""

    needs_references = True
    by_sample = False

    _split: Sequence[Document] = field(default=(), init=False, repr=False)
    _counted: Frequencies | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` on a corpus of fewer than two prompts, or of other things than lists of texts."""
        super().__post_init__()
        if self.corpus is not None and (
            len(self.corpus) < 2 or any(isinstance(texts, str) or not texts for texts in self.corpus)
        ):
            raise ConfigError(
                "corpus must hold the references of at least two prompts, as [[reference, …], …], got "
                f"{self.corpus!r:.80}"
            )

    def check(self) -> None:
        check_library("spacy", "metrics")

    def read_corpus(self, samples: Sequence[Document]) -> None:
        """Use document frequencies of a split, unless there is a ``corpus``; they are counted at first use."""
        self._split, self._counted = samples, None

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        by_prompt = {prompt: i for i, prompt in enumerate(prompts)}
        kept = list(by_prompt.values() if self.compat else range(len(prompts)))
        documents = list(zip(prompts, map(tuple, references), strict=True))
        frequencies = _frequencies([documents[i] for i in kept]) if self.compat else self._frequencies(documents)
        if self.compat and not frequencies.counts:
            raise RunError(f"with compat={self.compat} Cider needs a reference that is not empty")
        written = [_word_ngrams(generations[i]) for i in kept]
        given = [[_word_ngrams(text) for text in references[i]] for i in kept]
        scores = [
            sum(_similarity(text, reference, frequencies) for reference in texts) / len(texts)
            for text, texts in zip(written, given, strict=True)
        ]
        result = mean_of(scores)
        if self.compat:
            score_of = dict(zip(by_prompt, scores, strict=True))
            result = MetricResult(result.corpus, [score_of[prompt] for prompt in prompts])
        return {"lexical/cider": result}

    def _frequencies(self, measured: Sequence[tuple[str, tuple[str, ...]]]) -> Frequencies:
        """Document frequencies of the corpus or split, counted once; else of the samples ``measured``."""
        if self._counted is not None:
            return self._counted
        if self.corpus is not None:
            documents = [(str(number), tuple(map(spaced, texts))) for number, texts in enumerate(self.corpus)]
        else:
            every = -(-len(self._split) // _MOST_DOCUMENTS) or 1
            documents = [(s.prompt, tuple(map(spaced, s.references))) for s in self._split[::every]]
        frequencies = _frequencies(list(dict.fromkeys(documents or measured)))
        if frequencies.num_documents < 2:
            raise RunError(
                f"Cider weights n-grams by how few prompts have them in their references, and there is one prompt, "
                f"{(documents or measured)[0][0][:60]!r}: give corpus=[[reference, …], …] of other prompts, or measure "
                "several prompts at once"
            )
        if documents:
            self._counted, self._split = frequencies, ()
        return frequencies


def _frequencies(documents: Sequence[tuple[str, tuple[str, ...]]]) -> Frequencies:
    """Count the documents in whose references each n-gram occurs."""
    counts = Counter(ngram for _, texts in documents for ngram in set().union(*(_word_ngrams(text) for text in texts)))
    return Frequencies(counts, len(documents))


def _word_ngrams(text: str) -> Counter[tuple[str, ...]]:
    tokens = [token.text for token in _spacy()(text)]
    return ngrams(" ".join(tokens).split())  # without line breaks, which are tokens of spaCy


@functools.cache
def _spacy() -> Any:
    return library("spacy", "metrics").blank("en")


def _similarity(
    written: Counter[tuple[str, ...]], reference: Counter[tuple[str, ...]], frequencies: Frequencies
) -> float:
    """Mean over n = 1 … 4 of the clipped cosine, damped where lengths differ, times 10 (CIDEr-D, section 6)."""

    def vector(counts: Counter[tuple[str, ...]], order: int) -> Vector:
        return {ngram: count * frequencies.rarity(ngram) for ngram, count in counts.items() if len(ngram) == order}

    difference = _num_words(written) - _num_words(reference)
    damping = math.exp(-(difference**2) / (2 * _SIGMA**2))
    cosines = [_clipped_cosine(vector(written, n), vector(reference, n)) for n in range(1, _MAX_ORDER + 1)]
    return _SCALE * damping * sum(cosines) / _MAX_ORDER


def _num_words(counts: Counter[tuple[str, ...]]) -> int:
    return sum(count for ngram, count in counts.items() if len(ngram) == 1)


def _clipped_cosine(written: Vector, reference: Vector) -> float:
    """Cosine without a gain for n-grams that are repeated more often than in the reference."""
    product = sum(min(weight, reference[n]) * reference[n] for n, weight in written.items() if n in reference)
    norms = math.sqrt(sum(w * w for w in written.values()) * sum(w * w for w in reference.values()))
    return product / norms if norms else 0.0


@metrics.register("spice")
@dataclass(kw_only=True)
class Spice(Metric):
    """SPICE of pycocoevalcap: F-score of the scene graphs of generation and references.

    It needs Java, and downloads Stanford CoreNLP when it first runs. Its parser reads English: a text that has letters,
    but none from a to z, is an error.
    """

    needs_references = True

    def check(self) -> None:
        if shutil.which("java") is None:
            raise GroundlingError("SPICE needs Java: apt install default-jre-headless (and pip install pycocoevalcap)")
        if importlib.util.find_spec("pycocoevalcap") is None:
            raise GroundlingError("SPICE needs pycocoevalcap: pip install pycocoevalcap")

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        for text in (text for texts in (generations, *references) for text in texts):
            if any(map(str.isalpha, text)) and not re.search("[a-zA-Z]", text):
                raise RunError(f"SPICE parses English, and finds no word in {text[:60]!r}: choose another metric")
        self.check()
        from pycocoevalcap.spice.spice import Spice as Scorer

        ids = range(len(generations))
        _, scores = Scorer().compute_score({i: list(references[i]) for i in ids}, {i: [generations[i]] for i in ids})
        return {"lexical/spice": mean_of([float(score["All"]["f"]) for score in scores])}
