"""Word overlap with references: ROUGE (Lin 2004) for summaries and METEOR (Banerjee and Lavie 2005)."""

import contextlib
import functools
import importlib.util
import io
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from groundling.envs.text_generation.tasks import words
from groundling.errors import ConfigError, warn_caller
from groundling.fields import Gt
from groundling.metrics.metric import (
    Figures,
    LexicalMetric,
    Meta,
    MetricResult,
    References,
    Texts,
    check_library,
    library,
    mean_of,
    metrics,
)
from groundling.metrics.tokens import alphanumeric

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_SHORTEST_STEMMED = 4
DEBIAN_WORDNET = Path("/usr/share/wordnet")  # Debian's package wordnet-base installs WordNet here
_NUM_LEXICOGRAPHER_FILES = 45
_OPTIONS = ("max_n", "limit_length", "length_limit", "length_limit_type", "alpha", "weight_factor", "stemming")


@dataclass(kw_only=True)
class _RougeMetric(LexicalMetric):
    """Base class of ROUGE metrics. Non-ASCII letters, which the libraries drop, are dropped only with ``compat``."""

    needs_references = True

    def check_letters(self, generations: Texts, references: References) -> None:
        """Warn if the texts contain letters that are dropped."""
        texts = [*generations, *(text for given in references for text in given)]
        if any(c.isalpha() and not c.isascii() for text in texts for c in text.lower()):
            warn_caller(
                f"with compat={self.compat}, {self.name} drops letters other than a to z, which these texts contain: "
                "remove compat to keep them"
            )


@metrics.register("rouge")
@dataclass(kw_only=True)
class Rouge(_RougeMetric):
    """F-measures from the rouge-score library with stemming; each is the maximum over the references.
    With ``compat``, as in RL4LMs, several references are scored as one string, ``str(references)``, and the
    corpus value is the median of 1000 bootstrap samples instead of the mean.
    """

    use_single_ref: bool | None = None
    """If true, use only the first reference; if false, use all. If null, use all (only the first with ``compat``)."""

    required_library = "rouge_score"

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        scorer = library("rouge_score.rouge_scorer").RougeScorer(
            list(ROUGE_TYPES), use_stemmer=True, tokenizer=None if self.compat else _StemmedWords()
        )
        scores: dict[str, list[float]] = {name: [] for name in ROUGE_TYPES}
        rows = []
        for generation, given in zip(generations, references, strict=True):
            if self.use_single_ref or (self.use_single_ref is None and self.compat):
                given = given[:1]
            elif self.compat:
                given = [str(list(given))]
            by_reference = [scorer.score(text, generation) for text in given]
            rows.append(by_reference[0])
            for name in ROUGE_TYPES:
                scores[name].append(float(max(score[name].fmeasure for score in by_reference)))
        results = {name: mean_of(values) for name, values in scores.items()}
        if self.compat:
            results = {
                name: MetricResult(median, results[name].sentences)
                for name, median in _bootstrap_medians(rows).items()
            }
        return {f"lexical/rouge_{name}": result for name, result in results.items()}


class _StemmedWords:
    """A rouge-score tokenizer for all scripts, which returns the stems of `alphanumeric` words."""

    def __init__(self) -> None:
        self._stem = library("nltk.stem.porter").PorterStemmer().stem

    def tokenize(self, text: str) -> list[str]:
        return [self._stem(word) if len(word) >= _SHORTEST_STEMMED else word for word in alphanumeric(text)]


def _bootstrap_medians(rows: Sequence[Any]) -> dict[str, float]:
    """Return each F-measure's median over resampled corpora, seeded without changing NumPy's global state."""
    import numpy as np

    aggregator = library("rouge_score.scoring").BootstrapAggregator()
    for row in rows:
        aggregator.add_scores(row)
    state = np.random.get_state()  # noqa: NPY002  (the aggregator samples from NumPy's global generator)
    np.random.seed(0)  # noqa: NPY002
    try:
        return {name: float(score.mid.fmeasure) for name, score in aggregator.aggregate().items()}
    finally:
        np.random.set_state(state)  # noqa: NPY002


@metrics.register("rouge_l_max")
@dataclass(kw_only=True)
class RougeLMax(_RougeMetric):
    """ROUGE-L from the py-rouge library for the best reference, as reported by NarrativeQA's authors.
    Defaults follow RL4LMs' configs. py-rouge raises precision and recall to the power of 1 / ``weight_factor`` even
    for ROUGE-L; a factor of 1 yields ROUGE-L as defined by Lin.
    """

    max_n: int = 4
    limit_length: bool = True
    """Truncate texts after ``length_limit`` words or bytes."""
    length_limit: int = 100
    length_limit_type: Literal["words", "bytes"] = "words"
    apply_avg: bool = True
    """Has no effect, because references are scored one at a time. It is accepted so that RL4LMs' configs work."""
    apply_best: bool | str = True
    """Has no effect, like `apply_avg`."""
    alpha: float = 0.5
    """Weight of precision in the F-measure; the weight of recall is 1 - alpha."""
    weight_factor: Annotated[float, Gt(0)] = 1.2
    stemming: bool = True

    _rouge: Any = field(default=None, init=False, repr=False)

    def check(self) -> None:
        _py_rouge()
        check_library("nltk")

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        self._rouge = self._rouge or self._load()
        scores = [
            max(self._rouge.get_scores(generation, [text])["rouge-l"]["f"] for text in given)
            for generation, given in zip(generations, references, strict=True)
        ]
        return {"lexical/rouge_l_max": mean_of([float(score) for score in scores])}

    def _load(self) -> Any:
        class PyRouge(_py_rouge(None if self.compat else _Separators())):  # type: ignore[misc]
            @staticmethod
            def tokenize_text(text: str, language: str = "english") -> list[str]:
                return words(text)  # like py-rouge, but without NLTK's sentence splitter and its data

        options = {name: getattr(self, name) for name in _OPTIONS}
        return PyRouge(metrics=["rouge-l"], apply_avg=True, **options)


class _Separators:
    """Replacement for py-rouge's ASCII-only pattern of word separators."""

    def sub(self, replacement: str, text: str) -> str:
        return replacement.join(alphanumeric(text))


def _py_rouge(separators: _Separators | None = None) -> Any:
    """Return py-rouge's class or, with ``separators``, a copy that uses them."""
    with _pkg_resources():
        module: Any = library("rouge.rouge")
        if not hasattr(module.Rouge, "WORDNET_KEY_VALUE"):
            raise ConfigError("rouge_l_max needs py-rouge, not rouge: pip uninstall rouge; pip install py-rouge")
        if separators is not None:
            # The pattern is an attribute of a global class, so it is changed in a private copy of the module.
            module = importlib.util.module_from_spec(module.__spec__)
            module.__spec__.loader.exec_module(module)
            module.Rouge.REMOVE_CHAR_PATTERN = separators
    return module.Rouge


@contextlib.contextmanager
def _pkg_resources() -> Iterator[None]:
    """Provide a stand-in for pkg_resources, which py-rouge uses to find its files and setuptools 82 removed."""
    if importlib.util.find_spec("pkg_resources") is not None:
        yield
        return

    def resource_filename(package: str, name: str) -> str:
        return str(Path(str(sys.modules[package].__file__)).with_name(name))

    stand_in = types.ModuleType("pkg_resources")
    vars(stand_in)["resource_filename"] = resource_filename
    sys.modules["pkg_resources"] = stand_in
    try:
        yield
    finally:
        del sys.modules["pkg_resources"]


@functools.cache
def wordnet() -> Any:
    """Load NLTK's or Debian's WordNet; raise `GroundlingError` if neither is installed."""
    corpus = library("nltk.corpus").wordnet
    try:
        corpus.ensure_loaded()
    except LookupError as error:
        if not (DEBIAN_WORDNET / "data.noun").exists():
            raise ConfigError(
                "METEOR needs WordNet: run python -m nltk.downloader wordnet, or apt install wordnet-base"
            ) from error
    else:
        return corpus
    nltk_data = library("nltk.data")
    reader = library("nltk.corpus.reader.wordnet").WordNetCorpusReader

    class DebianWordNet(reader):  # type: ignore[misc, valid-type]
        def open(self, name: str) -> Any:
            if name == "lexnames":  # missing from the package; metrics do not use its names
                return io.StringIO("".join(f"{i:02d}\tfile{i}\t0\n" for i in range(_NUM_LEXICOGRAPHER_FILES)))
            return super().open(name)

        def map_wn(self, version: str = "wordnet") -> None:
            """Skip the mapping to the synsets of a different version."""

    if str(DEBIAN_WORDNET) not in nltk_data.path:
        nltk_data.path.append(str(DEBIAN_WORDNET))  # NLTK only reads from these folders
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return DebianWordNet(str(DEBIAN_WORDNET), None)


@metrics.register("meteor")
@dataclass(kw_only=True)
class Meteor(LexicalMetric):
    """NLTK's METEOR (α 0.9, β 3, γ 0.5) for the best reference.
    With ``compat``, as in RL4LMs, all references are scored as one string, ``str(references)``.
    """

    needs_references = True

    def check(self) -> None:
        check_library("nltk")
        wordnet()

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        meteor = library("nltk.translate.meteor_score").meteor_score
        synonyms = wordnet()
        scores = []
        for generation, given in zip(generations, references, strict=True):
            texts = [str(list(given))] if self.compat else given
            scores.append(float(meteor([words(text) for text in texts], words(generation), wordnet=synonyms)))
        return {"lexical/meteor": mean_of(scores)}
