"""Overlap of generations with their references: BLEU, TER and chrF; CIDEr and SPICE for captions."""

import functools
import importlib.util
import itertools
import math
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, RunError
from groundling.fields import Ge
from groundling.metrics.metric import (
    Figures,
    LexicalMetric,
    Meta,
    Metric,
    MetricResult,
    References,
    RewardOptions,
    Texts,
    library,
    mean_of,
    metrics,
)
from groundling.metrics.tokens import ngrams, spaced

_MAX_ORDER = 4
_ORDERS = range(1, _MAX_ORDER + 1)
Ngrams = tuple[Counter[tuple[str, ...]], ...]  # N-gram counts of a text, by order
Documents = Sequence[tuple[str, Sequence[str]]]  # (prompt, references) pairs
Frequencies = tuple[Counter[tuple[str, ...]], int]  # Document counts by n-gram, and number of documents


@metrics.register("bleu")
@dataclass(kw_only=True)
class Bleu(LexicalMetric):
    """Unsmoothed BLEU-4 on whitespace-separated words, as in TensorFlow's translation example.
    The reference length is that of the shortest reference. If all generations or all references are empty, BLEU is 0
    (NaN with ``compat``). For reporting, use `sacre_bleu` instead.
    """

    needs_references = True

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        matched, written, reference_length = [0] * _MAX_ORDER, [0] * _MAX_ORDER, 0
        for generation, given in zip(generations, references, strict=True):
            reference_length += min(len(text.split()) for text in given)
            for i in range(_MAX_ORDER):
                counts, available = ngrams(generation.split(), i + 1), Counter[tuple[str, ...]]()
                for text in given:
                    available |= ngrams(text.split(), i + 1)
                written[i] += counts.total()
                matched[i] += (counts & available).total()
        if not written[0] or not reference_length:
            return {"lexical/bleu": MetricResult(math.nan if self.compat else 0.0)}
        if not all(matched):
            return {"lexical/bleu": MetricResult(0.0)}
        precision = sum(math.log(m / w) for m, w in zip(matched, written, strict=True)) / _MAX_ORDER
        brevity = min(0.0, 1 - reference_length / written[0])
        return {"lexical/bleu": MetricResult(math.exp(precision + brevity))}


@dataclass(kw_only=True)
class SacreBleuMetric(LexicalMetric):
    """A sacrebleu corpus metric, divided by 100; the fields are the arguments of the sacrebleu class."""

    needs_references = True
    required_library = "sacrebleu"
    figure = ""
    library_class = ""
    options: ClassVar[Mapping[str, Any]] = {}

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "compat"}
        options = {**own, **self.options}
        try:
            scorer = getattr(library("sacrebleu.metrics"), self.library_class)(**options)
        except (AssertionError, KeyError, ValueError, RuntimeError, ImportError) as error:
            # A missing tokenizer raises one of the last two.
            raise ConfigError(f"sacrebleu rejects {options}: {error or type(error).__name__}") from error
        # sacrebleu expects one list of all first references, one of all second references, etc.
        score = scorer.corpus_score(list(generations), list(itertools.zip_longest(*references)))
        return {self.figure: MetricResult(float(score.score / 100))}


@metrics.register("sacre_bleu")
@dataclass(kw_only=True)
class SacreBleu(SacreBleuMetric):
    """BLEU as computed by sacrebleu (Post 2018). Use this metric for reporting."""

    tokenize: str | None = None
    """sacrebleu's tokenizer ("13a", "intl", "zh", "char", …). If null, scripts without spaces are split into
    characters and 13a is used (for Chinese this equals "zh")."""
    smooth_method: Literal["none", "floor", "add-k", "exp"] = "exp"
    smooth_value: float | None = None
    lowercase: bool = False
    effective_order: bool = False
    """Skip n-gram orders for which a short text has no n-grams; meant for scoring single texts, e.g. as a reward."""

    figure = "lexical/sacrebleu"
    library_class = "BLEU"

    @property
    def splits_characters(self) -> bool:
        return self.tokenize is None and super().splits_characters


@metrics.register("ter")
@dataclass(kw_only=True)
class Ter(SacreBleuMetric):
    """Translation edit rate (Snover et al. 2006): edits per reference word; 0 is best. As a reward, it is 1 - TER."""

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
    """chrF (Popović 2015): F-score of character n-grams; chrF++ with ``word_order=2``."""

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
class BleuTotto(SacreBleuMetric):
    """BLEU as in ToTTo's script: 13a tokenizer, lowercased, unsmoothed, with the closest reference's length."""

    figure = "table_to_text/bleu_overall"
    library_class = "BLEU"
    options = {"tokenize": "13a", "lowercase": True, "smooth_method": "none"}


_SIGMA = 6.0
_SCALE = 10.0
_MOST_DOCUMENTS = 20_000  # In larger splits, only every k-th sample is counted, to save memory


@metrics.register("cider")
@dataclass(kw_only=True)
class Cider(LexicalMetric):
    """CIDEr-D on spaCy tokens: cosine similarity of n-gram vectors weighted by inverse document frequency, times 10.
    The references of one prompt form a document. Frequencies are computed from ``corpus`` if set, else from the split
    of the run's pool, else from the samples measured together. With ``compat``, only these samples are used; if a
    prompt repeats, only its last sample is counted, and a single prompt scores 0.
    """

    corpus: References | None = None
    """References of at least two prompts, from which document frequencies are computed."""

    needs_references = True
    by_sample = False
    required_library = "spacy"

    _split: Sequence[Sample] = field(default=(), init=False, repr=False)
    _counted: Frequencies | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.corpus is not None and (len(self.corpus) < 2 or not all(self.corpus)):
            raise ConfigError(f"corpus needs references of at least two prompts, [[…], …], got {self.corpus!r:.80}")

    def read_corpus(self, samples: Sequence[Sample]) -> None:
        """Use a split's document frequencies, counted on first use, unless ``corpus`` is set."""
        self._split, self._counted = samples, None

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        by_prompt = {prompt: i for i, prompt in enumerate(prompts)}
        kept = list(by_prompt.values() if self.compat else range(len(prompts)))
        documents = list(zip(prompts, map(tuple, references), strict=True))
        frequencies = _frequencies([documents[i] for i in kept]) if self.compat else self._frequencies(documents)
        if self.compat and not frequencies[0]:
            raise RunError(f"with compat={self.compat}, Cider needs at least one non-empty reference")
        scores = []
        for i in kept:
            written, given = _word_ngrams(generations[i]), map(_word_ngrams, references[i])
            scores.append(sum(_similarity(written, text, frequencies) for text in given) / len(references[i]))
        result = mean_of(scores)
        if self.compat:
            score_of = dict(zip(by_prompt, scores, strict=True))
            result = MetricResult(result.corpus, [score_of[prompt] for prompt in prompts])
        return {"lexical/cider": result}

    def _frequencies(self, measured: Documents) -> Frequencies:
        """Return the document frequencies of the corpus or split, computed once; otherwise those of ``measured``."""
        if self._counted is not None:
            return self._counted
        if self.corpus is not None:
            documents = [(str(number), tuple(map(spaced, texts))) for number, texts in enumerate(self.corpus)]
        else:
            every = -(-len(self._split) // _MOST_DOCUMENTS) or 1
            documents = [(s.prompt, tuple(map(spaced, s.references))) for s in self._split[::every]]
        frequencies = _frequencies(list(dict.fromkeys(documents or measured)))
        if frequencies[1] < 2:
            raise RunError(
                f"Cider needs references for prompts other than {(documents or measured)[0][0][:60]!r}: "
                "set corpus=[[reference, …], …] or measure several prompts together"
            )
        if documents:
            self._counted, self._split = frequencies, ()
        return frequencies


def _frequencies(documents: Documents) -> Frequencies:
    """Count the number of documents whose references contain each n-gram."""
    counts = Counter[tuple[str, ...]]()
    for _, texts in documents:
        counts.update({ngram for text in texts for grams in _word_ngrams(text) for ngram in grams})
    return counts, len(documents)


def _word_ngrams(text: str) -> Ngrams:
    tokens = [token.text for token in _spacy()(text)]
    words = " ".join(tokens).split()  # without line breaks, which spaCy treats as tokens
    return tuple(ngrams(words, order) for order in _ORDERS)


@functools.cache
def _spacy() -> Any:
    return library("spacy").blank("en")


def _similarity(written: Ngrams, reference: Ngrams, frequencies: Frequencies) -> float:
    """Return 10 times the mean clipped cosine for n = 1 to 4, damped by length differences (CIDEr-D, section 6).
    The clipping ensures that repeating an n-gram more often than in the reference does not raise the score.
    """
    counts, num_documents = frequencies
    total = 0.0
    for pair in zip(written, reference, strict=True):
        x, y = (
            {ngram: count * math.log(num_documents / max(1, counts[ngram])) for ngram, count in text.items()}
            for text in pair
        )
        product = sum(min(weight, y[ngram]) * y[ngram] for ngram, weight in x.items() if ngram in y)
        norms = math.sqrt(sum(w * w for w in x.values()) * sum(w * w for w in y.values()))
        total += product / norms if norms else 0.0
    damping = math.exp(-((written[0].total() - reference[0].total()) ** 2) / (2 * _SIGMA**2))
    return _SCALE * damping * total / _MAX_ORDER


@metrics.register("spice")
@dataclass(kw_only=True)
class Spice(Metric):
    """SPICE from pycocoevalcap: F-score between the scene graphs of generation and references. Requires Java.
    Stanford CoreNLP is downloaded on first use. Texts that contain letters, but none from a to z, raise an error.
    """

    needs_references = True

    def check(self) -> None:
        if shutil.which("java") is None or importlib.util.find_spec("pycocoevalcap") is None:
            raise ConfigError(
                "SPICE needs Java and pycocoevalcap: apt install default-jre-headless; pip install pycocoevalcap"
            )

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        for text in (text for texts in (generations, *references) for text in texts):
            if any(map(str.isalpha, text)) and not re.search("[a-zA-Z]", text):
                raise RunError(f"SPICE only parses English and found no words in {text[:60]!r}: use another metric")
        self.check()
        from pycocoevalcap.spice.spice import Spice as Scorer

        ids = range(len(generations))
        _, scores = Scorer().compute_score({i: list(references[i]) for i in ids}, {i: [generations[i]] for i in ids})
        return {"lexical/spice": mean_of([float(score["All"]["f"]) for score in scores])}
