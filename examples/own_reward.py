"""A custom metric, reward and per-token reward, registered by `--import examples.own_reward`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import groundling as gl


@gl.metrics.register("long_words")
@dataclass(kw_only=True)
class LongWords(gl.metrics.Metric):
    """Share of words with at least ``letters`` letters."""

    letters: int = 6

    def measure(self, prompts: Any, generations: Sequence[str], references: Any, meta: Any) -> Any:
        lengths = [[len(word) for word in text.split()] for text in generations]
        shares = [sum(n >= self.letters for n in row) / max(1, len(row)) for row in lengths]
        return {"style/long_words": gl.metrics.mean_of(shares)}


@gl.rewards.register("no_echo")
def no_echo(prompts: Sequence[str], generations: Sequence[str]) -> list[float]:
    """Return -1 for each text that occurs in its prompt. A plain function suffices."""
    return [-float(text.strip() in prompt) for prompt, text in zip(prompts, generations, strict=True)]


@gl.rewards.register("new_words")
@dataclass(kw_only=True)
class NewWords(gl.rewards.TokenReward):
    """Return a reward of 1 for each token that completes a new word."""

    def at_token(self, prompt: str, previous: str, current: str, done: bool, *_: Any) -> float:
        return float(len(set(current.split())) > len(set(previous.split())))
