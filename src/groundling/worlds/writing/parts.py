"""What a run that writes is made of: how prompts are read, what a text is worth, what is measured."""

import inspect
from collections.abc import Mapping, Sequence
from typing import cast

from groundling.envs.spec import WorldSpec
from groundling.envs.text_generation import Sample, pools
from groundling.envs.text_generation.pools import Split
from groundling.envs.text_generation.prompts import Side
from groundling.errors import ConfigError, foreign
from groundling.lm.chat import Chat
from groundling.metrics import Metric
from groundling.policies.token import TokenPolicy
from groundling.registry import ComponentConfig
from groundling.rewards import RewardSum, Surroundings, chosen_parts, make_parts, measures
from groundling.rewards.part import RewardPartConfig
from groundling.worlds.writing.collect import PromptEncoder
from groundling.worlds.writing.config import WritingConfig


def samples_of(config: WritingConfig, split: Split) -> Sequence[Sample]:
    """A pool's prompts and references.

    Raises:
        GroundlingError: the pool's data cannot be had, or are no samples.
        ForeignError: the pool raised.
    """
    pool = pools.create(config.pool, **config.args)
    with foreign(f"pool {config.pool!r}, asked for {split},"):
        samples: Sequence[Sample] = pool.prepare(split)
        is_list = hasattr(samples, "__len__") and hasattr(samples, "__getitem__")
        first = samples[0] if is_list and len(samples) else None  # others are not read before they are needed
    if not is_list or not isinstance(first, Sample | None):
        raise ConfigError(f"pool {config.pool!r} must give a list of Sample, got {samples!r:.80}")
    return samples


def make_prompt_encoder(config: WritingConfig, policy: TokenPolicy) -> PromptEncoder:
    """How prompts are read by the policy's language model."""
    side = cast(Side, config.prompt_truncation_side)
    chat = Chat(policy.lm.tokenizer) if config.chat else None
    return PromptEncoder(policy.lm.tokenizer, config.max_prompt_length, side, chat, config.system)


def make_measured_reward(
    reward: Mapping[str, RewardPartConfig | None], spec: WorldSpec, policy: TokenPolicy, device: str
) -> RewardSum | None:
    """What texts are worth as they are measured; None if nothing is said.

    What a judge teaches while training runs is left out: it is known where it is learnt, and judges cost money.
    """
    settled = {name: part for name, part in reward.items() if part is None or not part.args.get("online")}
    if not chosen_parts(settled, spec):
        return None
    made = make_parts(settled, spec)
    made.begin(Surroundings(device, world=spec.subject, lm=policy.lm))
    return made


def make_metrics(named: Sequence[ComponentConfig], policy: TokenPolicy) -> list[Metric]:
    """Metrics of texts, what is repeated left out.

    One with an argument called ``lm`` gets the policy's, unless told another.
    """
    distinct = [metric for place, metric in enumerate(named) if metric not in named[:place]]
    return [_made(metric, policy) for metric in distinct]


def _made(metric: ComponentConfig, policy: TokenPolicy) -> Metric:
    """A metric that has what it needs: what is missing is told before anything is written for it."""
    asks = "lm" in inspect.signature(measures.get(metric.id)).parameters
    made = measures.create(metric.id, **({"lm": policy.lm} if asks else {}) | metric.args)
    made.check()
    return made
