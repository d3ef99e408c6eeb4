"""What a run that writes is made of: how prompts are read, what a text is worth, what is measured."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from groundling.configs.schema import ComponentConfig, EnvConfig, PoolConfig, RewardConfig
from groundling.envs.text_generation import Sample, pools
from groundling.envs.text_generation.pools import Split
from groundling.errors import ConfigError
from groundling.metrics import Metric
from groundling.policies.token import TokenPolicy
from groundling.registry import Registry, unknown
from groundling.rewards import Reward, measures, rewards
from groundling.worlds.writing.collect import PromptEncoder


def samples_of(pool: PoolConfig, split: Split) -> Sequence[Sample]:
    """A pool's prompts and references.

    Raises:
        GroundlingError: the pool's data cannot be had.
    """
    assert pool.id is not None
    samples: Sequence[Sample] = pools.create(pool.id, **pool.args).prepare(split)
    return samples


def make_prompt_encoder(env: EnvConfig, policy: TokenPolicy) -> PromptEncoder:
    """How prompts are read by the policy's language model.

    Raises:
        ConfigError: env.args is not about prompts.
    """
    known = ("max_prompt_length", "prompt_truncation_side")
    for name in env.args:
        if name not in known:
            raise ConfigError(unknown("argument of a run that writes, env.args", name, known))
    return PromptEncoder(policy.lm.tokenizer, **env.args)


def make_reward(reward: RewardConfig, policy: TokenPolicy) -> Reward | None:
    """What a text is worth; None if nothing is said. As for ``lm``: see `make_metrics`."""
    if reward.id is None:
        return None
    made: Reward = _made_of_text(rewards, reward.id, reward.args, policy)
    return made


def make_metrics(named: Sequence[ComponentConfig], policy: TokenPolicy) -> list[Metric]:
    """Metrics of texts, what is repeated left out.

    One with an argument called ``lm`` gets the policy's, unless told another.
    """
    distinct = [metric for place, metric in enumerate(named) if metric not in named[:place]]
    return [_made_of_text(measures, metric.id, metric.args, policy) for metric in distinct]


def _made_of_text(registry: Registry[Any], id: str, args: Mapping[str, Any], policy: TokenPolicy) -> Any:
    """A metric or reward that has what it needs: what is missing is told before anything is written for it."""
    asks = "lm" in inspect.signature(registry.get(id)).parameters
    made = registry.create(id, **({"lm": policy.lm} if asks else {}) | dict(args))
    made.check()
    return made
