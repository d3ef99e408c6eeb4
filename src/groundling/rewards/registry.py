"""Registries of rewards and metrics. Every metric can be used as a reward, and every reward as a metric."""

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from groundling.errors import ConfigError
from groundling.metrics.metric import Metric, RewardOptions, Scorer, metrics
from groundling.registry import Registry
from groundling.rewards.functions import SAMPLES, FunctionReward, name_of
from groundling.rewards.part import Reward, parts

Shaping = str | Mapping[str, Any] | None  # Reward to add to another: its id, or ``{id: …, args: …, weight: …}``

_FUNCTIONS = "a reward function"  # Stands in for the module of functions that are registered directly


class RewardRegistry(Registry[Any]):
    """Text rewards: `Reward` classes, plain functions of generations (see `FunctionReward`), and every metric.
    All accept ``shaping_fn`` (`Shaping`); metrics also accept the fields of `RewardOptions`.
    """

    def get(self, id: str) -> Callable[..., Scorer]:
        return _with_options(id, super().get(id))


rewards = RewardRegistry("reward")
rewards.adapt(metrics, metrics.get)

measures: Registry[Scorer] = Registry("metric")  # All metrics, and each reward's mean as a metric
measures.adapt(metrics, metrics.get)
measures.adapt(rewards, rewards.get)


@functools.cache
def _with_options(id: str, registered: Callable[..., Any]) -> Callable[..., Scorer]:
    """Return a factory that also accepts ``shaping_fn`` and, for a metric, the fields of `RewardOptions`."""
    # A plain function takes generations; other functions create a reward.
    takes_texts = not {"generations", "completions"}.isdisjoint(inspect.signature(registered).parameters)
    factory = _of_function(registered) if inspect.isfunction(registered) and takes_texts else registered
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


def register_function(function: Callable[..., Any], taken: Collection[str] = ()) -> str:
    """Register a function of completions, or a callable object, and return its id: its name, with a number if the name
    is ``taken``. An earlier function with the same id is replaced, for example when a notebook cell is rerun.
    """
    if not callable(function) or inspect.isclass(function) or isinstance(function, torch.nn.Module):
        raise ConfigError(f"a reward must be a function of completions or a reward's id, got {function!r:.80}")
    name = re.sub(r"[^\w-]+", "", name_of(function))
    if type(function).__hash__ is None:  # such as a dataclass; its bound method is hashable
        function = function.__call__  # type: ignore[operator]
    parameters = inspect.signature(function).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD or one.name in SAMPLES[:3] for one in parameters):
        given = ", ".join(map(str, parameters))
        raise ConfigError(f"the reward {name}({given}) must accept completions, a list of texts, and return scores")
    id = next(one for one in itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2))) if one not in taken)
    if id in rewards and inspect.unwrap(rewards.get(id)) is inspect.unwrap(function):  # registered by its author
        return id
    if id not in rewards.in_order() and id in parts:
        raise ConfigError(f"{id} is also the id of a bundled reward: rename the function")
    factory = _of_function(function)
    factory.__qualname__, factory.__module__ = id, _FUNCTIONS
    rewards.register(id)(factory)
    return id


def _of_function(function: Callable[..., Any]) -> Callable[..., Reward]:
    """Return a factory of `FunctionReward` that accepts the function's arguments other than the samples."""

    @functools.wraps(function)
    def make(**args: Any) -> Reward:
        return FunctionReward(function, args)

    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    options = [p for p in parameters if p.name not in SAMPLES and p.kind not in variadic]
    # An argument without a default may be a column of the pool; columns are known only when samples are scored.
    options = [p.replace(default=None if p.default is p.empty else p.default) for p in options]
    make.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in options])  # type: ignore[attr-defined]
    return make
