"""ROUGE (Lin 2004): n-grams and common subsequences that a summary shares with its references."""

import contextlib
import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from groundling.envs.text_generation.words import words
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.metrics.libraries import check_library, library
from groundling.metrics.metric import LexicalMetric, Meta, Metric, MetricResult, mean_of, metrics
from groundling.metrics.tokens import alphanumeric

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
RougeTokenizer = Literal["unicode", "ascii"]
_SHORTEST_STEMMED = 4


@dataclass(kw_only=True)
class _RougeMetric(LexicalMetric):
    """Base of ROUGE's two libraries, whose own rules drop every letter but a to z."""

    tokenizer: RougeTokenizer | None = None
    """Letters and digits of a word: "unicode" of every script, "ascii" only a to z and 0 to 9. null: "unicode"; with
    ``compat`` "ascii"."""

    needs_references = True

    def __post_init__(self) -> None:
        """Raise `ConfigError` on an unknown tokenizer."""
        super().__post_init__()
        if self.tokenizer not in (None, "unicode", "ascii"):
            raise ConfigError(f'tokenizer must be "unicode", "ascii" or null, got {self.tokenizer!r}')

    @property
    def is_ascii(self) -> bool:
        """True if only a to z and 0 to 9 count."""
        return self.tokenizer == "ascii" or (self.tokenizer is None and self.compat is not None)

    @property
    def splits_characters(self) -> bool:
        return not self.is_ascii

    def compute(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
    ) -> dict[str, MetricResult]:
        """Measure a batch of samples; see `Metric.compute`.

        Raises:
            RunError: with ``tokenizer="ascii"`` and without ``compat``, a text has letters but none from a to z.
        """
        if not self.is_ascii:
            return super().compute(prompts, generations, references, meta)
        self._check_letters([*generations, *(text for given in references for text in given)])
        return Metric.compute(self, prompts, generations, references, meta)

    def _check_letters(self, texts: Sequence[str]) -> None:
        name = type(self).__name__
        dropping = [text for text in texts if any(c.isalpha() and not c.isascii() for c in text.lower())]
        for text in dropping:
            if self.compat is None and not re.search("[a-z0-9]", text.lower()):
                raise RunError(
                    f'{name} with tokenizer="ascii" finds no word in {text[:60]!r}: set tokenizer="unicode"'
                )
        if dropping:
            warnings.warn(
                f"{name} drops letters other than a to z, and these texts have some: set tokenizer=unicode to count "
                "them",
                stacklevel=3,
            )


@metrics.register("rouge")
@dataclass(kw_only=True)
class Rouge(_RougeMetric):
    """F-measures of the library rouge-score, words stemmed, of the reference that fits best by each measure.

    The original scored the Python notation of the list when asked for all references, and gave the median of 1000
    bootstrap samples for the corpus instead of the mean: both with ``compat``.
    """

    use_single_ref: bool | None = None
    """True: the first reference only. False: all of them. null: all of them; with ``compat`` the first."""

    def check(self) -> None:
        """rouge-score."""
        check_library("rouge_score", "metrics")

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``lexical/rouge_rouge1``, ``…rouge2``, ``…rougeL``, ``…rougeLsum``."""
        scorer = library("rouge_score.rouge_scorer", "metrics").RougeScorer(
            list(ROUGE_TYPES), use_stemmer=True, tokenizer=None if self.is_ascii else _StemmedWords()
        )
        scores: dict[str, list[float]] = {name: [] for name in ROUGE_TYPES}
        rows = []
        for generation, given in zip(generations, references, strict=True):
            by_reference = [scorer.score(text, generation) for text in self._references(given)]
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

    def _references(self, given: Sequence[str]) -> Sequence[str]:
        if self.use_single_ref or (self.use_single_ref is None and self.compat):
            return given[:1]
        return [str(list(given))] if self.compat else given


class _StemmedWords:
    """Tokenizer of rouge-score for every script: stems of `alphanumeric` words."""

    def __init__(self) -> None:
        self._stem = library("nltk.stem.porter", "metrics").PorterStemmer().stem

    def tokenize(self, text: str) -> list[str]:
        return [self._stem(word) if len(word) >= _SHORTEST_STEMMED else word for word in alphanumeric(text)]


def _bootstrap_medians(rows: Sequence[Any]) -> dict[str, float]:
    """Of each F-measure, the median over resampled corpora; the resampling is seeded, NumPy's state left alone."""
    import numpy as np

    aggregator = library("rouge_score.scoring", "metrics").BootstrapAggregator()
    for row in rows:
        aggregator.add_scores(row)
    state = np.random.get_state()  # noqa: NPY002  (the aggregator draws from NumPy's global generator)
    np.random.seed(0)  # noqa: NPY002
    try:
        return {name: float(score.mid.fmeasure) for name, score in aggregator.aggregate().items()}
    finally:
        np.random.set_state(state)  # noqa: NPY002


@metrics.register("rouge_l_max")
@dataclass(kw_only=True)
class RougeLMax(_RougeMetric):
    """ROUGE-L of the library py-rouge, of the best reference: what NarrativeQA's authors report.

    The defaults are those of the original's configs. With a ``weight_factor`` other than 1 py-rouge takes precision
    and recall to the power of 1 / factor, also for ROUGE-L; 1 gives ROUGE-L as Lin defines it.
    """

    max_n: int = 4
    limit_length: bool = True
    """Cut texts after ``length_limit`` words or bytes."""
    length_limit: int = 100
    length_limit_type: Literal["words", "bytes"] = "words"
    apply_avg: bool = True
    """Of no effect, as references are scored one at a time; it is a key of the original's configs."""
    apply_best: bool | str = True
    """As `apply_avg`."""
    alpha: float = 0.5
    """Weight of recall in the F-measure is 1 - alpha."""
    weight_factor: float = 1.2
    stemming: bool = True

    _rouge: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` on options that cannot be run."""
        super().__post_init__()
        if self.length_limit_type not in ("words", "bytes"):
            raise ConfigError(f'length_limit_type must be "words" or "bytes", got {self.length_limit_type!r}')
        if self.weight_factor <= 0:
            raise ConfigError(f"weight_factor must be greater than 0, got {self.weight_factor}")

    def check(self) -> None:
        """py-rouge, and NLTK."""
        _py_rouge()
        check_library("nltk", "metrics")

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``lexical/rouge_l_max``."""
        self._rouge = self._rouge or self._load()
        scores = [
            max(self._rouge.get_scores(generation, [text])["rouge-l"]["f"] for text in given)
            for generation, given in zip(generations, references, strict=True)
        ]
        return {"lexical/rouge_l_max": mean_of([float(score) for score in scores])}

    def _load(self) -> Any:
        class PyRouge(_py_rouge(None if self.is_ascii else _Separators())):  # type: ignore[misc]
            @staticmethod
            def tokenize_text(text: str, language: str = "english") -> list[str]:
                return words(text)  # as py-rouge does, but without NLTK's sentence splitter and its data

        return PyRouge(
            metrics=["rouge-l"],
            max_n=self.max_n,
            limit_length=self.limit_length,
            length_limit=self.length_limit,
            length_limit_type=self.length_limit_type,
            apply_avg=True,
            alpha=self.alpha,
            weight_factor=self.weight_factor,
            stemming=self.stemming,
        )


class _Separators:
    """Replaces py-rouge's pattern of what separates words, which only knows ASCII."""

    def sub(self, replacement: str, text: str) -> str:
        return replacement.join(alphanumeric(text))


def _py_rouge(separators: _Separators | None = None) -> Any:
    """The class of py-rouge; with ``separators`` a copy of it that uses them."""
    with _pkg_resources():
        module: Any = library("rouge.rouge", "metrics")
        if not hasattr(module.Rouge, "WORDNET_KEY_VALUE"):
            raise GroundlingError("rouge_l_max needs py-rouge, not rouge: pip uninstall rouge; pip install py-rouge")
        if separators is not None:
            # py-rouge reads the pattern from a global class: a private copy of the module leaves the shared one alone.
            module = importlib.util.module_from_spec(module.__spec__)
            module.__spec__.loader.exec_module(module)
            module.Rouge.REMOVE_CHAR_PATTERN = separators
    return module.Rouge


@contextlib.contextmanager
def _pkg_resources() -> Iterator[None]:
    """Stand in for the part of setuptools that py-rouge asks where its files are, and that setuptools 82 dropped."""
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
