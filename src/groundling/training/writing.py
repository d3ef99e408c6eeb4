"""Rollouts of texts: the policy writes to a pool's prompts, or reads the pool's references."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.policies.token import TokenPolicy
from groundling.rewards import Reward
from groundling.training.collector import Collector, Finished


@dataclass(frozen=True, slots=True)
class Text:
    """A text that was written, as a run counts it: an episode whose steps are tokens."""

    sample: Sample
    generation: str
    episode_return: float
    length: int
    figures: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None


class Writing(Collector):
    """Lets a policy write ``num_texts`` texts a rollout, and rewards them.

    Args:
        order: Of the prompts.
        reward: Of the texts.
        num_texts: Texts of a rollout, of all processes together.
        own: Which of them this process writes.
        num_tokens: Tokens of a text at most.
        texts_per_prompt: How many texts are written to each prompt: a group, for RLOO and GRPO.

    Raises:
        ConfigError: the texts cannot be dealt out to whole groups.
    """

    def __init__(
        self,
        order: SampleOrder,
        reward: Reward,
        num_texts: int,
        own: slice,
        num_tokens: int,
        texts_per_prompt: int = 1,
    ) -> None:
        if texts_per_prompt < 1 or num_texts % texts_per_prompt:
            raise ConfigError(
                f"env.num_envs={num_texts} texts an update are no whole number of groups of "
                f"pool.texts_per_prompt={texts_per_prompt}"
            )
        self._order, self._reward, self._own = order, reward, own
        self._num_texts, self._num_tokens, self._group_size = num_texts, num_tokens, texts_per_prompt

    @torch.no_grad()
    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Finished]]:
        """Texts to the next prompts.

        Raises:
            ConfigError: the policy does not write.
            RunError: a reward is missing or not finite.
        """
        writer = as_writer(policy)
        drawn = self._order.draw(self._num_texts // self._group_size)
        samples = [sample for sample in drawn for _ in range(self._group_size)][self._own]
        # Drawn for all processes, so that a text does not depend on who writes it.
        uniforms = torch.rand(self._num_texts, self._num_tokens, dtype=torch.float64, generator=generator)
        rollout = writer.write(samples, self._num_tokens, uniforms[self._own])
        counted = rollout.mask if rollout.mask is not None else torch.ones_like(rollout.dones)
        lengths = counted.sum(0).tolist()  # (num_texts,)
        texts = self._texts(writer, rollout, lengths)
        rewards = self._rewards(samples, texts)  # (num_texts, longest)
        rollout.rewards = torch.zeros_like(rollout.values)  # (num_tokens, num_texts)
        rollout.rewards[: rewards.shape[1]] = rewards.T
        rollout.groups = torch.arange(self._num_texts)[self._own] // self._group_size
        on_step(sum(lengths))
        figures = _figures(rollout, counted)
        return rollout, [
            Text(sample, written[-1], total, length, own)
            for sample, written, total, length, own in zip(
                samples, texts, rewards.sum(1).tolist(), lengths, figures, strict=True
            )
        ]

    def _texts(self, writer: TokenPolicy, rollout: Rollout, lengths: Sequence[int]) -> list[list[str]]:
        """Of each column, what was written after each token; of a reward of whole texts, only the last is filled."""
        tokenizer = writer.lm.tokenizer
        rows = [ids[:length] for ids, length in zip(rollout.actions.T.tolist(), lengths, strict=True)]
        if self._reward.per_token:
            return [
                tokenizer.batch_decode([row[: i + 1] for i in range(len(row))], skip_special_tokens=True)
                for row in rows
            ]
        whole = tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [[""] * (length - 1) + [text] for length, text in zip(lengths, whole, strict=True)]

    def _rewards(self, samples: Sequence[Sample], texts: Sequence[Sequence[str]]) -> Tensor:
        return self._reward.at_tokens(
            [sample.prompt for sample in samples],
            texts,
            [list(sample.references) for sample in samples],
            [dict(sample.meta) for sample in samples],
        )

    def state_dict(self) -> list[dict[str, Any]]:
        return [self._order.state_dict()] * (self._own.stop - self._own.start)

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._order.load_state_dict(states[0])


class References(Collector):
    """Gives a pool's references as rollouts, as if the policy had written them: supervised training.

    Args:
        order: Of the samples; one with several references gives one of them each time it comes.
        num_texts: Texts of a rollout, of all processes together.
        own: Which of them this process reads.
        num_tokens: Tokens of a text at most; longer ones are cut.

    Raises:
        ConfigError: a sample has no reference.
    """

    def __init__(self, order: SampleOrder, num_texts: int, own: slice, num_tokens: int) -> None:
        for sample in order.samples:
            if not any(sample.references):
                raise ConfigError(f"sample {sample.id} has no reference: there is nothing to learn from")
        self._order, self._num_texts, self._own, self._num_tokens = order, num_texts, own, num_tokens

    @torch.no_grad()
    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Finished]]:
        """The next samples' references.

        Raises:
            ConfigError: the policy does not write.
        """
        writer = as_writer(policy)
        first = self._order.drawn
        drawn = self._order.draw(self._num_texts)
        texts = [sample.references[(first + k) % len(sample.references)] for k, sample in enumerate(drawn)][
            self._own
        ]
        rollout = writer.demonstrate(drawn[self._own], texts, self._num_tokens)
        on_step(rollout.num_transitions)
        return rollout, []

    def state_dict(self) -> list[dict[str, Any]]:
        return [self._order.state_dict()] * (self._own.stop - self._own.start)

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._order.load_state_dict(states[0])


def as_writer(policy: Policy) -> TokenPolicy:
    """The policy, if it is one that writes.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(f"{type(policy).__name__} does not write texts: set policy.id=token for a pool")
    return policy


def _figures(rollout: Rollout, counted: Tensor) -> list[dict[str, float]]:
    """What RL4LMs logs of each text of a rollout beside its reward and length: means over its tokens."""
    lengths = counted.sum(0).clamp(min=1)  # (num_texts,)
    told = {"log_prob": rollout.log_probs, "value": rollout.values}
    if rollout.kl is not None:
        told["kl"] = rollout.kl
    means = {name: ((x * counted).sum(0) / lengths).tolist() for name, x in told.items()}
    return [dict(zip(means, own, strict=True)) for own in zip(*means.values(), strict=True)]
