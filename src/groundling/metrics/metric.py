"""What a metric is: prompts, generations and references in, named figures out."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from groundling.errors import ConfigError, RunError
from groundling.metrics.tokens import spaced, stands_apart
from groundling.registry import Registry

Meta = Sequence[Mapping[str, Any]]
"""One mapping a sample: what its data pool knows beyond prompt and references (`concepts`, `raw_table`, `intent`)."""


class Document(Protocol):
    """Sample of a pool as `Metric.read_corpus` reads it."""

    @property
    def prompt(self) -> str: ...
    @property
    def references(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class MetricResult:
    """One figure of a metric."""

    corpus: float
    """Over all samples; NaN where it is not defined (a text too short to measure)."""
    sentences: list[float] | None = None
    """One for each sample; None of a figure that only a corpus has."""


@dataclass(kw_only=True)
class Metric(ABC):
    """Measures generations; the defaults are right, ``compat="rl4lms"`` gives what the original gave.

    A subclass says in `needs_references` whether every sample must have a reference, in `needs_meta` which keys its
    meta must have, and measures in `measure`.
    """

    compat: Literal["rl4lms"] | None = None
    """"rl4lms" reproduces RL4LMs's figures, faults included; `docs/metrics.md` lists where they differ."""

    needs_references: ClassVar[bool] = False
    needs_meta: ClassVar[tuple[str, ...]] = ()
    by_sample: ClassVar[bool] = True
    """Whether a sample's figure is the same whatever other samples are measured with it."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` on a ``compat`` that does not exist."""
        if self.compat not in (None, "rl4lms"):
            raise ConfigError(f'compat must be null or "rl4lms", got {self.compat!r}')

    def compute(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
    ) -> dict[str, MetricResult]:
        """Measure a batch of samples.

        Args:
            prompts: What was read, one for each sample.
            generations: What was written.
            references: What might have been written; an empty list where there is no reference.
            meta: What else is known of each sample.

        Returns:
            By the name it is logged under, each figure.

        Raises:
            RunError: the lists differ in length, or a sample lacks the reference or the meta that is needed.
        """
        check_samples(prompts, generations, references, meta)
        self._check_needs(prompts, references, meta)
        return self.measure(prompts, generations, references, meta)

    def check(self) -> None:  # noqa: B027 (some need nothing)
        """Raise `GroundlingError` if a library, a model or a file is missing; cheap, and loads no model.

        A run asks before it writes what is to be measured.
        """

    def read_corpus(self, samples: Sequence[Document]) -> None:  # noqa: B027 (few need it)
        """Take statistics from all samples of a split, some of which are measured; called once, before measuring."""

    def figure_names(self) -> Collection[str]:
        """Of a metric with several figures their names, which are known before anything is measured; of others none."""
        return ()

    @abstractmethod
    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """The figures of samples that have been checked."""

    def _check_needs(self, prompts: Sequence[str], references: Sequence[Sequence[str]], meta: Meta | None) -> None:
        name = type(self).__name__
        for index, prompt in enumerate(prompts):
            if self.needs_references and not references[index]:
                raise RunError(
                    f"{name} needs a reference for every sample: sample {index} has none (prompt {prompt[:60]!r}); "
                    "choose a metric that needs none, or a data pool with references"
                )
            for key in self.needs_meta:
                if meta is None or key not in meta[index]:
                    raise RunError(
                        f"{name} needs {key!r} in the meta of every sample: sample {index} has none; "
                        "choose a data pool that gives it"
                    )


class LexicalMetric(Metric):
    """Base of metrics that compare words.

    Characters of scripts without spaces between words (Chinese, Japanese, Thai, …) are words of their own, see
    `groundling.metrics.tokens.spaced`. With ``compat`` a run of them is one word, and a warning says so.
    """

    @property
    def splits_characters(self) -> bool:
        """True if scripts without spaces are split into characters before measuring."""
        return self.compat is None

    def compute(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
    ) -> dict[str, MetricResult]:
        """Measure a batch of samples; see `Metric.compute`."""
        if self.splits_characters:
            generations = [spaced(text) for text in generations]
            references = [[spaced(text) for text in given] for given in references]
        elif self.compat and any(c.isalpha() and stands_apart(c) for text in generations for c in text):
            warnings.warn(
                f"with compat={self.compat} {type(self).__name__} takes a run of Chinese, Japanese, Thai, … "
                "characters as one word, as the original did: leave compat out to count characters",
                stacklevel=2,
            )
        return super().compute(prompts, generations, references, meta)


metrics: Registry[Metric] = Registry("metric")


def check_samples(
    prompts: Sequence[str], generations: Sequence[str], references: Sequence[Sequence[str]], meta: Meta | None
) -> None:
    """Raise `RunError` unless there are samples, and as many of everything."""
    lengths = {"prompts": len(prompts), "generations": len(generations), "references": len(references)}
    if meta is not None:
        lengths["meta"] = len(meta)
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise RunError(f"every sample needs one of each, got {counts} (references may be empty lists)")
    if not prompts:
        raise RunError("there is no sample to measure")


def mean_of(scores: Sequence[float]) -> MetricResult:
    """The figure whose corpus value is the mean of its samples'."""
    return MetricResult(sum(scores) / len(scores), list(scores))
