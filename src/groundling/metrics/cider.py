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
from groundling.metrics.libraries import library
from groundling.metrics.metric import LexicalMetric, Metric, metrics
from groundling.metrics.scorer import Document, Figures, Meta, MetricResult, References, Texts, mean_of
from groundling.metrics.tokens import spaced

_MAX_ORDER = 4
_SIGMA = 6.0
_SCALE = 10.0
_MOST_DOCUMENTS = 20_000  # Of a larger split every k-th sample is counted, to save memory

Ngrams = Counter[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Document frequencies of n-grams."""

    counts: Ngrams
    num_documents: int

    def vector(self, text: Ngrams, order: int) -> dict[tuple[str, ...], float]:
        """Counts of the n-grams of one order, times the logarithm of their inverse document frequency."""
        return {
            ngram: count * math.log(self.num_documents / max(1, self.counts[ngram]))
            for ngram, count in text.items()
            if len(ngram) == order
        }


@metrics.register("cider")
@dataclass(kw_only=True)
class Cider(LexicalMetric):
    """CIDEr-D of spaCy's words: cosine of n-gram vectors weighted by inverse document frequency, times 10.
    A document is the references of a prompt. Frequencies are those of ``corpus``, else of the split of a run's pool,
    else of the samples measured together. With ``compat`` they are always those of the samples measured together; of
    samples with equal prompts only the last counts, and a single prompt gives 0.
    """

    corpus: References | None = None
    """References of at least two prompts, in which document frequencies are counted."""

    needs_references = True
    by_sample = False
    required_library = "spacy"

    _split: Sequence[Document] = field(default=(), init=False, repr=False)
    _counted: Frequencies | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.corpus is not None and (
            len(self.corpus) < 2 or any(isinstance(texts, str) or not texts for texts in self.corpus)
        ):
            raise ConfigError(
                "corpus must hold the references of at least two prompts, as [[reference, …], …], got "
                f"{self.corpus!r:.80}"
            )

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


def _word_ngrams(text: str) -> Ngrams:
    tokens = [token.text for token in _spacy()(text)]
    return ngrams(" ".join(tokens).split())  # without line breaks, which are tokens of spaCy


@functools.cache
def _spacy() -> Any:
    return library("spacy").blank("en")


def _similarity(written: Ngrams, reference: Ngrams, frequencies: Frequencies) -> float:
    """Mean over n = 1 … 4 of the clipped cosine, damped where lengths differ, times 10 (CIDEr-D, section 6).
    Clipped: n-grams that are repeated more often than in the reference gain nothing.
    """
    total = 0.0
    for order in range(1, _MAX_ORDER + 1):
        x, y = frequencies.vector(written, order), frequencies.vector(reference, order)
        product = sum(min(weight, y[ngram]) * y[ngram] for ngram, weight in x.items() if ngram in y)
        norms = math.sqrt(sum(w * w for w in x.values()) * sum(w * w for w in y.values()))
        total += product / norms if norms else 0.0
    lengths = [sum(count for ngram, count in text.items() if len(ngram) == 1) for text in (written, reference)]
    damping = math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * _SIGMA**2))
    return _SCALE * damping * total / _MAX_ORDER


@metrics.register("spice")
@dataclass(kw_only=True)
class Spice(Metric):
    """SPICE of pycocoevalcap: F-score of the scene graphs of generation and references. Needs Java.
    It downloads Stanford CoreNLP when it first runs. A text that has letters, but none from a to z, is an error.
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
