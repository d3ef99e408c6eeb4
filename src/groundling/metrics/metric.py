"""Metrics: named figures of texts."""

import warnings
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from groundling.errors import ConfigError, RunError, unknown
from groundling.metrics.scorer import Figures, Meta, MetricResult, References, Scorer, Texts, check_samples
from groundling.metrics.tokens import spaced, stands_apart
from groundling.registry import Registry


@dataclass(frozen=True)
class RewardOptions:
    """Conversion of a metric to a reward: ``offset + scale`` · a figure."""

    key: str | None = None  # Name of the figure; null if the metric has only one
    scale: float = 1.0  # Negative if less is better (perplexity, TER)
    offset: float = 0.0


@dataclass(kw_only=True)
class Metric(Scorer):
    """Measures generations by named figures. A subclass implements `measure`.

    `needs_references` and `needs_meta` name the requirements on every sample.
    """

    reward_options = RewardOptions()

    @abstractmethod
    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        """Figures of samples that have been checked."""

    def figure_names(self) -> Collection[str]:
        """Names of a metric's figures if it has several; known before anything is measured."""
        return ()

    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        check_samples(prompts, generations, references, meta)
        for index, prompt in enumerate(prompts):
            if self.needs_references and not references[index]:
                raise RunError(
                    f"{self.name} needs a reference for every sample: sample {index} has none (prompt "
                    f"{prompt[:60]!r}); choose a metric that needs none, or a data pool with references"
                )
            for key in self.needs_meta:
                if meta is None or key not in meta[index]:
                    raise RunError(
                        f"{self.name} needs {key!r} in the meta of every sample: sample {index} has none; "
                        "choose a data pool that gives it"
                    )
        return self.measure(prompts, generations, references, meta)

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        """Figure of each sample, scaled; if it exists only for a corpus, each sample is a corpus of its own."""
        figure = self._figure(self.compute(prompts, generations, references, meta))
        scores = figure.sentences
        if scores is None:
            singles = (slice(i, i + 1) for i in range(len(prompts)))
            scores = [
                self._figure(self.compute(prompts[i], generations[i], references[i], meta and meta[i])).corpus
                for i in singles
            ]
        return [self.reward_options.offset + self.reward_options.scale * score for score in scores]

    def check_key(self, names: Collection[str]) -> str:
        """Return the name out of ``names`` that is the reward; `ConfigError` if missing or ambiguous."""
        key = self.reward_options.key
        if key is None and len(names) == 1:
            return next(iter(names))
        if key is None:
            raise ConfigError(f"{self.name} has several figures, name one with key=…: {', '.join(sorted(names))}")
        if key not in names:
            raise ConfigError(unknown(f"key of {self.name}", key, names))
        return key

    def _figure(self, figures: Figures) -> MetricResult:
        return figures[self.check_key(figures)]


class LexicalMetric(Metric):
    """Base of metrics that compare words. Characters of scripts without spaces are words (see `spaced`).
    With ``compat`` a run of such characters (Chinese, Japanese, Thai, …) is one word, and a warning says so.
    """

    @property
    def splits_characters(self) -> bool:
        """True if scripts without spaces are split into characters before measuring."""
        return self.compat is None

    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        if self.splits_characters:
            generations = [spaced(text) for text in generations]
            references = [[spaced(text) for text in given] for given in references]
        else:
            self.check_letters(generations, references)
        return super().compute(prompts, generations, references, meta)

    def check_letters(self, generations: Texts, references: References) -> None:
        """Warn if texts that are not split have scripts without spaces."""
        if self.compat and any(c.isalpha() and stands_apart(c) for text in generations for c in text):
            warnings.warn(
                f"with compat={self.compat} {self.name} takes a run of Chinese, Japanese, Thai, … characters as one "
                "word, as the original did: leave compat out to count characters",
                stacklevel=3,
            )


metrics: Registry[Metric] = Registry("metric")
