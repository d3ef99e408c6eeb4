"""Base classes for text metrics, and functions that load the libraries and models they use."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, GroundlingError, RunError, foreign, pass_out_of_memory, unknown, warn_caller
from groundling.metrics.tokens import spaced, stands_apart
from groundling.registry import Registry
from groundling.runtime.devices import find_device


def check_library(name: str) -> None:
    """Raise `GroundlingError` if a package of the ``metrics`` extra is not installed, without importing it."""
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"{name} is not installed: pip install 'groundling[metrics]'")


def library(module: str) -> Any:
    """Import a module after checking with `check_library` that its package is installed."""
    check_library(module.partition(".")[0])
    return importlib.import_module(module)


def check_model(kind: str, name: str) -> Any:
    """Load the config, but not the weights, of the Transformers model ``name`` (a folder or hub id).
    Raises `GroundlingError` if the model is missing, has an adapter, or needs code from the hub.
    """
    from transformers import AutoConfig

    from groundling.lm.load.model import refuse_adapter, refuse_kernels
    from groundling.lm.load.model_files import check_model_files, is_offline, quietly

    check_model_files(name)
    with loading(kind, name), quietly():
        cached = not Path(name).is_dir() and is_offline()
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=cached)
    refuse_adapter(name)
    refuse_kernels(config, name)
    return config


def load_model(kind: str, name: str, auto_class: str, device: str, **tokenizer_options: Any) -> tuple[Any, Any]:
    """Load a tokenizer and a model for inference with ``auto_class``; raises the same errors as `check_model`."""
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
    """Convert errors that Transformers raises while loading the model ``name`` to `GroundlingError`."""
    try:
        yield
    except GroundlingError:
        raise
    except Exception as error:  # Transformers raises many exception types
        pass_out_of_memory(error)
        raise ConfigError(
            f"the {kind} {name} cannot be loaded (expected a folder, or a hub id and access to the hub): "
            f"{(str(error).splitlines() or [''])[0]}"
        ) from error


Texts = Sequence[str]  # One text per sample
References = Sequence[Sequence[str]]  # Reference texts of each sample; empty if a sample has no references
Meta = Sequence[Mapping[str, Any]] | None
"""Additional data for each sample, from its pool (`concepts`, `raw_table`, `intent`)."""


@dataclass(frozen=True, slots=True)
class MetricResult:
    """The value of a metric."""

    corpus: float  # Over all samples; NaN if undefined, e.g. for a text that is too short
    sentences: list[float] | None = None  # One per sample; None if defined only for a corpus


Figures = dict[str, MetricResult]  # Results, keyed by the names under which they are logged


@dataclass(kw_only=True)
class Scorer(ABC):
    """Scores generated texts. `compute` returns metrics; calling the object or `at_tokens` returns rewards."""

    compat: Literal["rl4lms"] | None = None
    """"rl4lms" reproduces RL4LMs' values, including its bugs; `docs/metrics.md` lists the differences."""

    registered_id = ""  # Id under which the scorer was created
    needs_references = False  # True if it uses the samples' references (and, in a `Reward`, their meta)
    required_library: ClassVar[str] = ""  # Package of the ``metrics`` extra that `check` looks for
    needs_meta: ClassVar[tuple[str, ...]] = ()  # Keys that the meta of every sample must contain
    by_sample = True
    """True if a sample's score is independent of other samples; if not, the main process scores all of them."""
    per_token = False  # True if `at_tokens` scores every token; otherwise, only the last one is scored

    @property
    def name(self) -> str:
        """Name used in messages."""
        return type(self).__name__

    @property
    def needs_pool(self) -> bool:
        """True if it uses references or meta, which only a pool's samples have."""
        return self.needs_references or bool(self.needs_meta)

    @abstractmethod
    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        """Compute the metrics of a batch of samples.

        Args:
            prompts, generations: One of each per sample; the generations are scored.
            references: Reference texts of each sample.
            meta: Additional data of each sample.

        Raises:
            RunError: The lists differ in length, or a sample lacks a required reference or meta entry.
        """

    @abstractmethod
    def score(
        self, prompts: Texts, generations: Texts, references: References, meta: Meta
    ) -> Sequence[float] | Tensor:
        """Return one finite number for each sample."""

    def __call__(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Tensor:
        """Return the samples' scores as float32 ``(batch,)`` on the CPU; see `compute` for arguments and errors."""
        check_samples(prompts, generations, references, meta)
        with foreign(f"{self.name}, called with {len(generations)} texts,"):
            scores = self.score(prompts, generations, references, meta)
        try:
            tensor = torch.as_tensor(scores, dtype=torch.float32, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"{self.name} must return one number for each sample, got {scores!r:.80}") from error
        return checked(self.name, tensor, (len(generations),))

    def at_tokens(
        self,
        prompts: Texts,
        texts: Sequence[Texts],
        references: References,
        meta: Meta = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """Score every token: the last one gets the score of the whole text, the others 0.

        Args:
            prompts, references, meta: See `compute`.
            texts: For each sample, the text up to each of its tokens; the last one is the whole generation. Unless
                `per_token` is set, only the number of texts and the last text are used.
            tokens: Ids of each sample's tokens; empty if they are unknown.

        Returns:
            Scores ``(batch, longest)`` as float32; 0 after a sample's last token.
        """
        lengths = token_counts(texts)
        whole = self(prompts, [written[-1] for written in texts], references, meta)
        scores = torch.zeros(len(texts), max(lengths))
        scores[torch.arange(len(texts)), torch.tensor(lengths) - 1] = whole
        return scores

    def check(self) -> None:
        """Raise `GroundlingError` if a library, a model or a file is missing, without loading a model."""
        if self.required_library:
            check_library(self.required_library)

    def read_corpus(self, samples: Sequence[Sample]) -> None:  # noqa: B027 (few need it)
        """Compute statistics over all samples of a split, some of which are scored later."""

    def figures(self) -> dict[str, int]:
        """Return counts to log, such as the number of failed requests."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later scores depend on, as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (most have no state)
        """Restore the state returned by `state_dict`."""


def checked(name: str, rewards: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return rewards as float32 without gradients; raise `RunError` unless they have this shape and are finite."""
    if tuple(rewards.shape) != shape:
        expected, got = (" x ".join(map(str, one)) for one in (shape, rewards.shape))
        raise RunError(f"{name} returned the wrong number of rewards: expected {expected}, got {got or 'a scalar'}")
    for place in (~rewards.isfinite()).nonzero().tolist():
        value = rewards[tuple(place)].item()
        raise RunError(
            f"{name} returned {value} at index {', '.join(map(str, place))}: rewards must be finite numbers"
        )
    return rewards.detach().float()


def check_samples(prompts: Sequence[Any], generations: Sequence[Any], references: Sequence[Any], meta: Meta) -> None:
    """Raise `RunError` unless there is at least one sample and all lists have the same length."""
    lengths = {"prompts": len(prompts), "generations": len(generations), "references": len(references)}
    if meta is not None:
        lengths["meta"] = len(meta)
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise RunError(f"every list needs one entry per sample, got {counts} (references may be empty lists)")
    if any(isinstance(given, str) for given in references):
        raise RunError(f"references must be a list of texts for each sample, [['text'], …], got {references!r:.80}")
    if not prompts:
        raise RunError("there are no samples to measure")


def token_counts(texts: Sequence[Texts]) -> list[int]:
    """Return the number of tokens of each sample; raise `RunError` if a sample has no tokens."""
    lengths = list(map(len, texts))
    if not lengths or 0 in lengths:
        raise RunError("every sample needs at least one token to reward")
    return lengths


def mean_of(scores: Sequence[float]) -> MetricResult:
    """Return a result whose corpus value is the mean of the scores."""
    return MetricResult(sum(scores) / len(scores), list(scores))


@dataclass(frozen=True)
class RewardOptions:
    """Conversion of a metric to a reward: ``offset + scale * value``."""

    key: str | None = None  # Name of the value; may be null if there is only one
    scale: float = 1.0  # Negative if lower is better (perplexity, TER)
    offset: float = 0.0


@dataclass(kw_only=True)
class Metric(Scorer):
    """Computes one or more named values for generations. Subclasses implement `measure`.

    `needs_references` and `needs_meta` declare what every sample must contain.
    """

    reward_options = RewardOptions()

    @abstractmethod
    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        """Compute the metric for samples that have already been checked."""

    def figure_names(self) -> Collection[str]:
        """Return the names of the metric's values if it has several, without measuring anything."""
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
        """Return each sample's scaled value; metrics defined only for a corpus score each sample separately."""
        figures = self.compute(prompts, generations, references, meta)
        key = self.check_key(figures)
        scores = figures[key].sentences
        if scores is None:
            samples = zip(prompts, generations, references, meta or [{}] * len(prompts), strict=True)
            scores = [self.compute([p], [g], [r], [m])[key].corpus for p, g, r, m in samples]
        return [self.reward_options.offset + self.reward_options.scale * score for score in scores]

    def check_key(self, names: Collection[str]) -> str:
        """Return the name of the value to use as the reward; raise `ConfigError` if it is missing or ambiguous."""
        key = self.reward_options.key
        if key is None and len(names) == 1:
            return next(iter(names))
        if key is None:
            raise ConfigError(f"{self.name} has several values: set key to one of {', '.join(sorted(names))}")
        if key not in names:
            raise ConfigError(unknown(f"key of {self.name}", key, names))
        return key


class LexicalMetric(Metric):
    """Base class of metrics that compare words. Each character of an unspaced script is a word (see `spaced`). With
    ``compat``, a run of such characters (Chinese, Japanese, Thai, …) is one word, and a warning is issued.
    """

    @property
    def splits_characters(self) -> bool:
        """True if unspaced scripts are split into characters before measuring."""
        return self.compat is None

    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        check_samples(prompts, generations, references, meta)
        if self.splits_characters:
            generations = [spaced(text) for text in generations]
            references = [[spaced(text) for text in given] for given in references]
        else:
            self.check_letters(generations, references)
        return super().compute(prompts, generations, references, meta)

    def check_letters(self, generations: Texts, references: References) -> None:
        """Warn if texts that are not split into characters contain unspaced scripts."""
        if self.compat and any(c.isalpha() and stands_apart(c) for text in generations for c in text):
            warn_caller(
                f"with compat={self.compat}, {self.name} treats a run of Chinese, Japanese, Thai, … characters as one "
                "word, as RL4LMs does: remove compat to count characters"
            )


metrics: Registry[Metric] = Registry("metric")
