"""Metrics: named figures of texts."""

import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, GroundlingError, RunError, foreign, pass_out_of_memory, unknown
from groundling.metrics.tokens import spaced, stands_apart
from groundling.registry import Registry
from groundling.runtime.devices import find_device


def check_library(name: str) -> None:
    """Raise `GroundlingError` if a package of the extra ``metrics`` is not installed, without importing it."""
    if importlib.util.find_spec(name) is None:
        raise GroundlingError(f"{name} is not installed: pip install 'groundling[metrics]'")


def library(module: str) -> Any:
    """Import a module of a package that `check_library` checks."""
    check_library(module.partition(".")[0])
    return importlib.import_module(module)


def check_model(kind: str, name: str) -> Any:
    """Load the config of the Transformers model ``name``, a folder or hub id, without its weights.
    Raises `GroundlingError` if the model is missing, has an adapter, or needs the hub's code.
    """
    from transformers import AutoConfig

    from groundling.lm.load.model import refuse_adapter, refuse_kernels
    from groundling.lm.load.model_files import check_model_files, quietly

    check_model_files(name)
    with loading(kind, name), quietly():
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    refuse_adapter(name)
    refuse_kernels(config, name)
    return config


def load_model(kind: str, name: str, auto_class: str, device: str, **tokenizer_options: Any) -> tuple[Any, Any]:
    """Load tokenizer and Transformers model ``name`` for inference by ``auto_class``; raises as `check_model`."""
    check_model(kind, name)
    import transformers

    from groundling.lm.load.model import load_pretrained
    from groundling.lm.load.model_files import quietly

    with loading(kind, name):
        with quietly():
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **tokenizer_options)
        model: Any = load_pretrained(getattr(transformers, auto_class), name, trust_remote_code=False)
    return tokenizer, model.eval().to(find_device(device))


@contextmanager
def loading(kind: str, name: str) -> Iterator[None]:
    """Convert errors of Transformers, while it loads the model ``name``, to `GroundlingError`."""
    try:
        yield
    except GroundlingError:
        raise
    except Exception as error:  # Transformers raises many kinds
        pass_out_of_memory(error)
        raise GroundlingError(
            f"the {kind} {name} cannot be loaded (a folder or a hub id is needed, and the hub must be reachable for "
            f"the latter): {(str(error).splitlines() or [''])[0]}"
        ) from error


Texts = Sequence[str]  # One text for each sample
References = Sequence[Sequence[str]]  # Reference texts of each sample; an empty list if there are none
Meta = Sequence[Mapping[str, Any]] | None
"""For each sample, further data of its pool (`concepts`, `raw_table`, `intent`)."""


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A figure of a metric."""

    corpus: float  # Over all samples; NaN if it is not defined (a text too short to measure)
    sentences: list[float] | None = None  # One for each sample; None if the figure exists only for a corpus


Figures = dict[str, MetricResult]  # Figures by the names under which they are logged


@dataclass(kw_only=True)
class Scorer(ABC):
    """Scores generated texts: `compute` as a metric, a call and `at_tokens` as a reward."""

    compat: Literal["rl4lms"] | None = None
    """"rl4lms" reproduces RL4LMs's figures, faults included; `docs/metrics.md` lists where they differ."""

    registered_id = ""  # Id under which it was created
    needs_references = False  # Uses references of samples; of a `Reward` also their meta
    required_library: ClassVar[str] = ""  # Package that `check` looks for; of the extra ``metrics``
    needs_meta: ClassVar[tuple[str, ...]] = ()  # Keys that the meta of every sample must have
    by_sample = True
    """A sample's score does not depend on other or earlier ones; else the main process scores the samples of all."""
    per_token = False  # `at_tokens` scores every token; otherwise the last token has the score of the whole text

    @property
    def name(self) -> str:
        """Name in messages."""
        return type(self).__name__

    @property
    def needs_pool(self) -> bool:
        """True if it uses references or meta, which only samples of a pool have."""
        return self.needs_references or bool(self.needs_meta)

    @abstractmethod
    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        """Measure a batch of samples.

        Args:
            prompts, generations: One for each sample; the generations are measured.
            references: Reference texts of each sample.
            meta: Further data of each sample.

        Raises:
            RunError: the lists differ in length, or a sample lacks a reference or meta that is needed.
        """

    @abstractmethod
    def score(
        self, prompts: Texts, generations: Texts, references: References, meta: Meta
    ) -> Sequence[float] | Tensor:
        """One finite number for each sample."""

    def __call__(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Tensor:
        """Score a batch of samples; arguments and errors as of `compute`. Returns ``(batch,)`` float32, on the CPU."""
        check_samples(prompts, generations, references, meta)
        with foreign(f"{self.name}, asked about {len(generations)} texts,"):
            scores = self.score(prompts, generations, references, meta)
        try:
            tensor = torch.as_tensor(scores, dtype=torch.float32, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"{self.name} must give one number for each sample, got {scores!r:.80}") from error
        return checked(self.name, tensor, (len(generations),))

    def at_tokens(
        self,
        prompts: Texts,
        texts: Sequence[Texts],
        references: References,
        meta: Meta = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """Score every token: the last one has the score of the whole text, the others 0.

        Args:
            prompts, references, meta: As of `compute`.
            texts: For each sample, the text after each of its tokens; the last is the whole generation. Unless
                `per_token`, only their number and the last one matter.
            tokens: Ids of each sample's tokens; empty if they are unknown.

        Returns:
            ``(batch, longest)`` float32, 0 after a sample's last token.
        """
        lengths = token_counts(texts)
        whole = self(prompts, [written[-1] for written in texts], references, meta)
        scores = torch.zeros(len(texts), max(lengths))
        scores[torch.arange(len(texts)), torch.tensor(lengths) - 1] = whole
        return scores

    def check(self) -> None:
        """Raise `GroundlingError` if a library, a model or a file is missing; fast, and loads no model."""
        if self.required_library:
            check_library(self.required_library)

    def read_corpus(self, samples: Sequence[Sample]) -> None:  # noqa: B027 (few need it)
        """Compute statistics of all samples of a split, some of which are scored later."""

    def state_dict(self) -> dict[str, Any]:
        """State that later scores depend on; serialisable as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most have no state)
        """Restore what `state_dict` returned."""


def checked(name: str, rewards: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return rewards as float32 without gradients; raise `RunError` unless they have the shape and are finite."""
    if tuple(rewards.shape) != shape:
        raise RunError(f"{name} must give rewards of shape {shape}, and gave {tuple(rewards.shape)}")
    for place in (~rewards.isfinite()).nonzero().tolist():
        value = rewards[tuple(place)].item()
        raise RunError(f"{name} gave {value} at {tuple(place)}: rewards must be finite numbers")
    return rewards.detach().float()


def check_samples(prompts: Sequence[Any], generations: Sequence[Any], references: Sequence[Any], meta: Meta) -> None:
    """Raise `RunError` unless there are samples, and equally many of everything."""
    lengths = {"prompts": len(prompts), "generations": len(generations), "references": len(references)}
    if meta is not None:
        lengths["meta"] = len(meta)
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise RunError(f"every sample needs one of each, got {counts} (references may be empty lists)")
    if not prompts:
        raise RunError("there is no sample to measure")


def token_counts(texts: Sequence[Texts]) -> list[int]:
    """Number of tokens of each sample; raise `RunError` if one has none."""
    lengths = list(map(len, texts))
    if not lengths or 0 in lengths:
        raise RunError("every sample needs at least one token to be rewarded for")
    return lengths


def mean_of(scores: Sequence[float]) -> MetricResult:
    """The figure whose corpus value is the mean of its samples'."""
    return MetricResult(sum(scores) / len(scores), list(scores))


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
                raise RunError(f"{self.name} needs references: sample {index} has none (prompt {prompt[:60]!r})")
            for key in self.needs_meta:
                if meta is None or key not in meta[index]:
                    raise RunError(f"{self.name} needs {key!r} in the meta of every sample: sample {index} has none")
        return self.measure(prompts, generations, references, meta)

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> list[float]:
        """Figure of each sample, scaled; if it exists only for a corpus, each sample is a corpus of its own."""
        figures = self.compute(prompts, generations, references, meta)
        key = self.check_key(figures)
        scores = figures[key].sentences
        if scores is None:
            samples = zip(prompts, generations, references, meta or [{}] * len(prompts), strict=True)
            scores = [self.compute([p], [g], [r], [m])[key].corpus for p, g, r, m in samples]
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
