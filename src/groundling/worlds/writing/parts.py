"""What a run that writes is made of: how prompts are read, what a text is worth, what is measured."""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, overload

from groundling.envs.spec import WorldSpec
from groundling.envs.text_generation import Sample, pools
from groundling.envs.text_generation.columns import FilePool
from groundling.envs.text_generation.pools import Split
from groundling.envs.text_generation.prompts import Side
from groundling.errors import ConfigError, GroundlingError, foreign
from groundling.metrics import Metric
from groundling.policies.token import TokenPolicy
from groundling.registry import ComponentConfig
from groundling.rewards import RewardSum, Surroundings, chosen_parts, make_parts, measures
from groundling.rewards.part import RewardPartConfig
from groundling.worlds.writing.collect import PromptEncoder
from groundling.worlds.writing.config import WritingConfig


def samples_of(config: WritingConfig, split: Split) -> Sequence[Sample]:
    """A pool's prompts and references, each read when it is needed, and the first one now.

    Raises:
        GroundlingError: the pool's data cannot be had, or are no samples; also where one is read.
        ForeignError: the pool raised; likewise.
    """
    pool = pools.create(config.pool, **config.args)
    asked = f"pool {config.pool!r}, asked for {split},"
    with foreign(asked):
        given = pool.prepare(split)
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise ConfigError(f"{asked} must give a list of Sample, got {given!r:.80}")
    samples = _Samples(given, asked)
    if len(samples):
        samples[0]
    return samples


def warn_of_shared_prompts(config: WritingConfig, training: Sequence[Sample], validated: bool) -> None:
    """Warn if a held-out split of a pool has prompts that are trained on; a split without data is passed over.

    Only splits that cost little are read: val, where training measures it anyway, and the test split of files.

    Args:
        config: The section ``world``.
        training: The pool's train split.
        validated: Training measures the val split.
    """
    pool = pools.create(config.pool, **config.args)
    splits: list[Split] = ["val"] if validated else []
    if isinstance(pool, FilePool):
        splits = ["val", "test"]
    if not splits or not getattr(pool, "has_splits", True):
        return
    trained = set(map(_asked, training))
    for split in splits:
        try:
            held_out = [_asked(sample) for sample in samples_of(config, split)]
        except GroundlingError:  # raised again where the split is used
            continue
        if shared := [asked for asked in held_out if asked in trained]:
            warnings.warn(
                f"pool {config.pool!r}: {len(shared)} of {len(held_out)} {split} prompts are training prompts as well, "
                f"such as {shared[0][-1]!r:.80}: figures of {split} are partly of prompts that were trained on",
                stacklevel=2,
            )


def _asked(sample: Sample) -> tuple[object, ...]:
    """All that a sample's answer is a reply to; the prompt comes last."""
    return sample.system, sample.earlier, sample.prompt


class _Samples(Sequence[Sample]):
    """What a pool gives, each checked as it is read."""

    def __init__(self, given: Any, asked: str) -> None:
        self._given, self._asked = given, asked

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Sample]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sample]: ...
    def __getitem__(self, place: int | slice) -> Sample | list[Sample]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        with foreign(self._asked):
            sample = self._given[place]
        if not isinstance(sample, Sample):
            raise ConfigError(f"{self._asked} must give a list of Sample, got {sample!r:.80} at {place}")
        return sample


def make_prompt_encoder(config: WritingConfig, policy: TokenPolicy) -> PromptEncoder:
    """How prompts are read by the policy's language model."""
    side = cast(Side, config.prompt_truncation_side)
    lm, length = policy.lm, config.max_prompt_length
    chat = lm.chat if config.chat else None
    return PromptEncoder(
        lm.tokenizer, length, side, chat, config.system, lm.end_tokens, lm.add_special_tokens
    )


def make_measured_reward(
    reward: Mapping[str, RewardPartConfig | None],
    spec: WorldSpec,
    policy: TokenPolicy,
    device: str,
    samples: Sequence[Sample] = (),
) -> RewardSum | None:
    """Reward of the texts written to some of a split's ``samples``; None if the config names none.

    What a judge teaches while training runs is left out: it is known where it is learnt, and judges cost money.
    """
    settled = {name: part for name, part in reward.items() if part is None or not part.args.get("online")}
    if not chosen_parts(settled, spec):
        return None
    made = make_parts(settled, spec)
    made.begin(Surroundings(device, world=spec.subject, lm=policy.lm, samples=samples))
    return made


def make_metrics(
    named: Sequence[ComponentConfig], policy: TokenPolicy, samples: Sequence[Sample] = ()
) -> list[Metric]:
    """Distinct metrics of the texts written to some of a split's ``samples``.

    One with an argument called ``lm`` gets the policy's, unless the config names another.
    """
    distinct = [metric for place, metric in enumerate(named) if metric not in named[:place]]
    made = [_made(metric, policy) for metric in distinct]
    for metric in made:
        metric.read_corpus(samples)
    return made


def _made(metric: ComponentConfig, policy: TokenPolicy) -> Metric:
    """A metric that has what it needs: what is missing is told before anything is written for it."""
    asks = "lm" in inspect.signature(measures.get(metric.id)).parameters
    made = measures.create(metric.id, **({"lm": policy.lm} if asks else {}) | metric.args)
    made.check()
    return made
