"""Ids of rewards and metrics: every metric is a reward, and every reward a metric."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.judges.reward_models.reward_model import RewardModel
from groundling.metrics.metric import Metric, RewardOptions, Scorer, metrics
from groundling.registry import Registry, taken
from groundling.rewards.part import SAMPLES, FunctionReward, Reward

Shaping = str | Mapping[str, Any] | None  # Reward to add to another one: its id, or ``{id: …, args: …, weight: …}``


class RewardRegistry(Registry[Any]):
    """Rewards of texts: `Reward` classes, plain functions of generations (see `FunctionReward`), and every metric.
    All take ``shaping_fn`` (`Shaping`), and metrics also the fields of `RewardOptions`.
    """

    def get(self, id: str) -> Callable[..., Scorer]:
        return _with_options(id, super().get(id))

    def _hint(self, id: str) -> str:
        """Explain how a plain function is a reward, if the factory might have been meant as one."""
        factory = self._factories.get(id)
        if inspect.isfunction(factory) and not _scores_texts(factory):
            return "; a function that scores texts takes them as generations (or completions)"
        return super()._hint(id)


rewards = RewardRegistry("reward")
rewards.adapt(metrics, metrics.get)

measures: Registry[Scorer] = Registry("metric")  # Every metric, and every reward as the metric that is its mean
measures.adapt(metrics, metrics.get)
measures.adapt(rewards, rewards.get)


@functools.cache
def _with_options(id: str, registered: Callable[..., Any]) -> Callable[..., Scorer]:
    """Return a factory that takes also ``shaping_fn`` and, of a metric, the fields of `RewardOptions`."""
    factory = _of_function(registered) if _scores_texts(registered) else registered
    signature = inspect.signature(factory)
    is_metric = inspect.isclass(factory) and issubclass(factory, Metric)
    known = inspect.signature(RewardOptions).parameters.values() if is_metric else ()
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in known if p.name not in signature.parameters]

    @functools.wraps(factory, updated=())
    def make(*, shaping_fn: Shaping = None, **args: Any) -> Scorer:
        chosen = {p.name: args.pop(p.name) for p in options if p.name in args}
        reward = factory(**args)
        reward.registered_id = id
        if isinstance(reward, Metric):
            reward.reward_options = replace(reward.reward_options, **chosen)
            if names := reward.figure_names():
                reward.check_key(names)
        if shaping_fn is None:
            return reward
        added = {"id": shaping_fn} if isinstance(shaping_fn, str) else shaping_fn
        return rewards.create("weighted_sum", parts=[(reward, 1.0), added], compat=reward.compat)

    shaping = inspect.Parameter("shaping_fn", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Shaping)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
    make.__signature__ = signature.replace(parameters=[*named, shaping, *options, *rest])  # type: ignore[attr-defined]
    return make


def _scores_texts(factory: Callable[..., Any]) -> bool:
    """Return True for a plain function of generations, False for a factory of rewards."""
    return inspect.isfunction(factory) and not {"generations", "completions"}.isdisjoint(
        inspect.signature(factory).parameters
    )


def _of_function(function: Callable[..., Any]) -> Callable[..., Reward]:
    """Make a factory of `FunctionReward` that takes the function's arguments except for the samples."""

    @functools.wraps(function)
    def make(**args: Any) -> Reward:
        return FunctionReward(function, args)

    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.name not in SAMPLES and p.kind not in variadic]
    make.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in options])  # type: ignore[attr-defined]
    return make


def create_within(compat: str | None, id: str, args: Mapping[str, Any] | None) -> Scorer:
    """Make the reward ``id`` within another one, whose ``compat`` it has unless ``args`` set it."""
    if not isinstance(args, Mapping | None):
        raise ConfigError(f"the args of reward {id!r} must be a mapping, {{name: value}}, got {args!r}")
    return rewards.create(id, **taken(rewards.get(id), {"compat": compat}) | dict(args or {}))


class RewardTable:
    """Output of ``model`` for each caption so far, by an id of its content; emptied when the model changes."""

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._version = model.version
        self._rewards: dict[int, float] = {}

    def __call__(self, ids: Tensor, read: Callable[[Sequence[int]], Sequence[str]]) -> Tensor:
        """Reward captions by unique ids, int64 on the CPU: float32 of their shape, on the CPU, no gradients.
        ``read`` returns the captions at places of the flattened ids; it is called for new ids only.
        """
        if self._version != self.model.version:
            self._version = self.model.version
            self._rewards.clear()
        flat = ids.flatten().tolist()
        new = {id: place for place, id in reversed(list(enumerate(flat))) if id not in self._rewards}
        if new:
            order = sorted(new)
            rewards = self.model.rewards(read([new[id] for id in order]))
            self._rewards |= zip(order, rewards.tolist(), strict=True)
        return torch.tensor([self._rewards[id] for id in flat], dtype=torch.float32).view(ids.shape)

    def state_dict(self) -> dict[str, Tensor]:
        """``ids`` int64 (n,), ascending, ``rewards`` float32 (n,), and the model's ``version`` int64 ()."""
        ids = torch.tensor(sorted(self._rewards), dtype=torch.int64)
        rewards = torch.tensor([self._rewards[id] for id in ids.tolist()], dtype=torch.float32)
        return {"ids": ids, "rewards": rewards, "version": torch.tensor(self._version)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned, unless the model has changed."""
        if int(state["version"]) == self.model.version:
            self._rewards = dict(zip(state["ids"].tolist(), state["rewards"].tolist(), strict=True))
