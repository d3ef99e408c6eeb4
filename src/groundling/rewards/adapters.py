"""Any metric as a reward, any reward as a metric."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from groundling.errors import ConfigError
from groundling.metrics.metric import Document, Meta, Metric, MetricResult, mean_of, metrics
from groundling.registry import Registry, unknown
from groundling.rewards.composite import shaped
from groundling.rewards.reward import Reward, rewards, shared


@dataclass(kw_only=True)
class MetricReward(Reward):
    """``offset + scale`` · what a metric says of each sample.

    Of a figure that only a corpus has, each sample is a corpus of its own.
    """

    metric: Metric
    key: str | None = None
    """Which of the metric's figures; may be left out if there is one."""
    scale: float = 1.0
    """Negative where less is better (perplexity, TER)."""
    offset: float = 0.0

    def __post_init__(self) -> None:
        """Depend on the batch, and need references, if the metric does."""
        super().__post_init__()
        self.by_sample = self.metric.by_sample
        self.needs_references = self.metric.needs_references or bool(self.metric.needs_meta)

    def check(self) -> None:
        """What the metric needs; and whether it is said which of its figures is meant."""
        self.metric.check()
        if names := self.metric.figure_names():
            self._check_key(names)

    def read_corpus(self, samples: Sequence[Document]) -> None:
        """Let the metric take its statistics."""
        self.metric.read_corpus(samples)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{type(self.metric).__name__} as a reward"

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> list[float]:
        """The figure of each sample, scaled."""
        figure = self._pick(self.metric.compute(prompts, generations, references, meta))
        scores = figure.sentences
        if scores is None:
            singles = (slice(i, i + 1) for i in range(len(prompts)))
            scores = [
                self._pick(
                    self.metric.compute(prompts[i], generations[i], references[i], None if meta is None else meta[i])
                ).corpus
                for i in singles
            ]
        return [self.offset + self.scale * score for score in scores]

    def _pick(self, figures: Mapping[str, MetricResult]) -> MetricResult:
        if self.key is None and len(figures) == 1:
            return next(iter(figures.values()))
        return figures[self._check_key(figures)]

    def _check_key(self, names: Collection[str]) -> str:
        if self.key is None:
            raise ConfigError(f"{self.name} has several figures, name one with key=…: {', '.join(sorted(names))}")
        if self.key not in names:
            raise ConfigError(unknown(f"key of {self.name}", self.key, names))
        return self.key


def metric_as_reward(make_metric: Callable[..., Metric], **fixed: Any) -> Callable[..., Reward]:
    """A function that makes a metric a reward.

    It takes the metric's arguments, `MetricReward`'s that are not ``fixed`` here, and ``shaping_fn`` (as `shaped`).
    """

    def make(
        *, shaping_fn: str | Mapping[str, Any] | None = None, compat: Literal["rl4lms"] | None = None, **args: Any
    ) -> Reward:
        reward_args = {name: args.pop(name) for name in open_ if name in args}
        metric = make_metric(**shared(make_metric, compat), **args)
        return shaped(MetricReward(metric=metric, compat=compat, **fixed, **reward_args), shaping_fn)

    open_ = [name for name in ("key", "scale", "offset") if name not in fixed]
    named = inspect.signature(MetricReward).parameters
    kept = [p for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    taken = {"compat", "shaping_fn", *open_}
    others = [
        p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY)
        for p in inspect.signature(make_metric).parameters.values()
        if p.name not in taken and p.kind is not p.VAR_POSITIONAL
    ]
    signature = inspect.Signature([*kept, *(named[name] for name in open_), *others])
    make.__signature__ = signature  # type: ignore[attr-defined]  # so that a registry can check arguments
    make.__doc__ = inspect.getdoc(make_metric)
    make.__qualname__ = f"{make_metric.__qualname__} as a reward"
    return make


@dataclass(kw_only=True)
class RewardMetric(Metric):
    """A reward's mean, and its value for each sample."""

    id: str
    reward: Reward

    def check(self) -> None:
        """What the reward needs."""
        self.reward.check()

    def read_corpus(self, samples: Sequence[Document]) -> None:
        """Let the reward take its statistics."""
        self.reward.read_corpus(samples)

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``reward/ID``."""
        scores: Tensor = self.reward(prompts, generations, references, meta)
        return {f"reward/{self.id}": mean_of(scores.tolist())}


def reward_as_metric(id: str) -> Callable[..., Metric]:
    """A function that makes the reward ``id`` a metric, with its arguments."""
    make_reward = rewards.get(id)

    def make(**args: Any) -> Metric:
        return RewardMetric(id=id, reward=make_reward(**args), compat=args.get("compat"))

    make.__signature__ = inspect.signature(make_reward)  # type: ignore[attr-defined]
    make.__doc__ = inspect.getdoc(make_reward)
    return make


rewards.adapt(metrics, lambda id: metric_as_reward(metrics.get(id)))

measures: Registry[Metric] = Registry("metric")
"""What texts can be measured by: every metric, and every reward as the metric that is its mean."""
measures.adapt(metrics, metrics.get)
measures.adapt(rewards, reward_as_metric)
