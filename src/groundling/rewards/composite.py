"""Rewards made of rewards: weighted sums, and shaping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.arguments import taken
from groundling.errors import ConfigError
from groundling.metrics.metric import Document, Meta
from groundling.rewards.reward import Reward, part_of, rewards, token_counts


@rewards.register("weighted_sum")
@dataclass(kw_only=True)
class WeightedSum(Reward):
    """Σ weight · reward; per token as soon as one of them is."""

    parts: Sequence[Mapping[str, Any] | tuple[Reward, float]]
    """Each an ``id``, its ``args`` and a ``weight`` (1 unless given); in Python also a reward and its weight."""

    terms: list[tuple[Reward, float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the parts; raise `ConfigError` if there is none, or one cannot be made."""
        super().__post_init__()
        if not self.parts or not isinstance(self.parts, Sequence):
            raise ConfigError(
                "weighted_sum needs a list of at least one part, as [{id: …, args: {…}, weight: …}], got "
                f"{self.parts!r}"
            )
        self.terms = [_term(part, self.compat) for part in self.parts]
        self.per_token = any(reward.per_token for reward, _ in self.terms)
        self.by_sample = all(reward.by_sample for reward, _ in self.terms)
        self.needs_references = any(reward.needs_references for reward, _ in self.terms)

    def score(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> Tensor:
        """The sum for each sample."""
        return torch.stack(
            [weight * reward(prompts, generations, references, meta) for reward, weight in self.terms]
        ).sum(0)

    def at_tokens(
        self,
        prompts: Sequence[str],
        texts: Sequence[Sequence[str]],
        references: Sequence[Sequence[str]],
        meta: Meta | None = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """``(batch, longest)`` float32: each part's rewards where it gives them."""
        token_counts(texts)
        return torch.stack(
            [
                weight
                * reward.at_tokens(prompts, texts, references, meta, **taken(reward.at_tokens, {"tokens": tokens}))
                for reward, weight in self.terms
            ]
        ).sum(0)

    def check(self) -> None:
        """All that the parts need."""
        for reward, _ in self.terms:
            reward.check()

    def read_corpus(self, samples: Sequence[Document]) -> None:
        """Let each part take its statistics."""
        for reward, _ in self.terms:
            reward.read_corpus(samples)

    def state_dict(self) -> dict[str, Any]:
        """What each part remembers."""
        return {str(place): reward.state_dict() for place, (reward, _) in enumerate(self.terms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        for place, (reward, _) in enumerate(self.terms):
            reward.load_state_dict(state[str(place)])


def _term(part: Mapping[str, Any] | tuple[Reward, float], compat: str | None) -> tuple[Reward, float]:
    if isinstance(part, tuple):
        return part
    if not isinstance(part, Mapping) or "id" not in part or set(part) - {"id", "args", "weight"}:
        raise ConfigError(
            f"a part of weighted_sum has id, args and weight, got "
            f"{', '.join(map(str, part)) if isinstance(part, Mapping) else repr(part)}"
        )
    weight = part.get("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ConfigError(f"the weight of {part['id']} in weighted_sum must be a number, got {weight!r}")
    return part_of(compat, part["id"], part.get("args")), float(weight)


def shaped(reward: Reward, shaping_fn: str | Mapping[str, Any] | None) -> Reward:
    """The reward plus the shaping reward that ``shaping_fn`` names, by id or as ``{id: …, args: …, weight: …}``."""
    if shaping_fn is None:
        return reward
    part = {"id": shaping_fn} if isinstance(shaping_fn, str) else shaping_fn
    return WeightedSum(parts=[(reward, 1.0), part], compat=reward.compat)
