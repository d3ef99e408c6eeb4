"""Rewards of texts: a number for each generation, or for each of its tokens."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groundling.arguments import taken
from groundling.errors import RunError, foreign
from groundling.metrics.scorer import Figures, Meta, References, Scorer, Texts, check_samples, mean_of, token_counts

SAMPLES = ("prompts", "generations", "completions", "references", "meta")
"""Arguments of a plain function that are lists with one entry for each sample."""


@dataclass(kw_only=True)
class Reward(Scorer):
    """Rewards generations. A subclass implements `score`; as a metric, it is the mean."""

    def compute(self, prompts: Texts, generations: Texts, references: References, meta: Meta = None) -> Figures:
        """Return ``reward/ID``: the mean, and the reward of each sample."""
        scores = self(prompts, generations, references, meta)
        return {f"reward/{self.registered_id or self.name}": mean_of(scores.tolist())}


@dataclass(kw_only=True)
class TokenReward(Reward):
    """Rewards every token. A subclass implements `at_token`, which sees the text before and after the token."""

    per_token = True

    @abstractmethod
    def at_token(
        self,
        prompt: str,
        previous: str,
        current: str,
        done: bool,
        references: Sequence[str],
        meta: Mapping[str, Any] | None,
    ) -> float:
        """Reward the token that turned ``previous`` into ``current``; ``done``: it is the sample's last one.

        A method with the keyword arguments ``action: int | None = None`` and ``tokens: Sequence[int] = ()`` also gets
        the token's id and the ids of all tokens up to it, special tokens included. They keep their defaults when a
        whole text is rewarded as one token.
        """

    def at_tokens(
        self,
        prompts: Texts,
        texts: Sequence[Texts],
        references: References,
        meta: Meta = None,
        tokens: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        check_samples(prompts, texts, references, meta)
        rewards = torch.zeros(len(texts), max(token_counts(texts)))
        wanted = taken(self.at_token, {"action": None, "tokens": ()}) if tokens else {}
        for row, written in enumerate(texts):
            sample_meta = None if meta is None else meta[row]
            for step, current in enumerate(written):
                previous, done = written[step - 1] if step else "", step == len(written) - 1
                ids: dict[str, Any] = {"action": tokens[row][step]} if "action" in wanted else {}
                if "tokens" in wanted:
                    ids["tokens"] = tokens[row][: step + 1]
                with foreign(f"{self.name}, asked about token {step} of text {row},"):
                    reward = self.at_token(prompts[row], previous, current, done, references[row], sample_meta, **ids)
                try:
                    rewards[row, step] = float(reward)
                except (TypeError, ValueError) as error:
                    raise RunError(f"{self.name} must give a number for each token, got {reward!r:.80}") from error
        return self.checked(rewards, tuple(rewards.shape))

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Tensor:
        """Reward whole generations, each as one token."""
        return self.at_tokens(prompts, [[text] for text in generations], references, meta)[:, 0]


class FunctionReward(Reward):
    """A plain function as a reward, with further arguments ``args``.
    It takes some of ``prompts``, ``generations`` (or ``completions``, as in TRL), ``references`` and ``meta`` by name,
    each with one entry for each sample, and returns a number for each.
    """

    def __init__(self, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
        super().__init__()
        self._function, self._args = function, args
        self._taken = [name for name in inspect.signature(function).parameters if name in SAMPLES]
        self.needs_references = not {"references", "meta"}.isdisjoint(self._taken)

    @property
    def name(self) -> str:
        return self._function.__name__

    def score(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Any:
        values = dict(zip(SAMPLES, (prompts, generations, generations, references, meta), strict=True))
        return self._function(**{name: values[name] for name in self._taken}, **self._args)
