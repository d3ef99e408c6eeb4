"""Weighted sums of rewards of texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.metrics.scorer import Document, Meta, References, Scorer, Texts
from groundling.rewards.registry import create_within, rewards
from groundling.rewards.reward import Reward


@rewards.register("weighted_sum")
@dataclass(kw_only=True)
class WeightedSum(Reward):
    """Σ weight · reward; by token if one of the rewards is."""

    parts: Sequence[Any]
    """Mappings with ``id``, ``args`` and ``weight`` (default 1); in Python also pairs of a reward and its weight."""

    terms: list[tuple[Scorer, float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.parts or not isinstance(self.parts, Sequence):
            raise ConfigError(
                "weighted_sum needs a list of at least one part, as [{id: …, args: {…}, weight: …}], got "
                f"{self.parts!r}"
            )
        self.terms = [_term(part, self.compat) for part in self.parts]
        self.per_token = any(reward.per_token for reward, _ in self.terms)
        self.by_sample = all(reward.by_sample for reward, _ in self.terms)
        self.needs_references = any(reward.needs_pool for reward, _ in self.terms)

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Tensor:
        return self._sum(lambda reward: reward(prompts, generations, references, meta))

    def at_tokens(
        self,
        prompts: Texts,
        texts: Sequence[Texts],
        references: References,
        meta: Meta = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        return self._sum(lambda reward: reward.at_tokens(prompts, texts, references, meta, tokens))

    def _sum(self, value: Callable[[Scorer], Tensor]) -> Tensor:
        return torch.stack([weight * value(reward) for reward, weight in self.terms]).sum(0)

    def check(self) -> None:
        for reward, _ in self.terms:
            reward.check()

    def read_corpus(self, samples: Sequence[Document]) -> None:
        for reward, _ in self.terms:
            reward.read_corpus(samples)

    def state_dict(self) -> dict[str, Any]:
        return {str(place): reward.state_dict() for place, (reward, _) in enumerate(self.terms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for place, (reward, _) in enumerate(self.terms):
            reward.load_state_dict(state[str(place)])


def _term(part: Mapping[str, Any] | tuple[Scorer, float], compat: str | None) -> tuple[Scorer, float]:
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
    return create_within(compat, part["id"], part.get("args")), float(weight)
