"""Texts to token ids, remembered: policies ask for the same prompts and candidates again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from groundling.errors import GroundlingError

_REMEMBERED_TEXTS, _REMEMBERED_TOKENS = 100_000, 2**22
"""Of prompts, and of candidates: what is remembered at most; 4 M tokens are some 150 MB of Python's numbers."""


@dataclass
class _Remembered:
    """Token ids by text."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    tokens: int = 0
    """How many they are together."""


class TextTokens:
    """Token ids of prompts and candidates, with what models need checked once per text.

    Args:
        tokenizer: Any Transformers tokenizer.
        vocabulary_size: Rows of the model's embedding; a token beyond them is told instead of crashing later.
        fallback_token: What an empty prompt becomes where the tokenizer adds no special token.
        max_prompt_tokens: Longer prompts keep their last tokens (and their first, where it marks the beginning).
        add_special_tokens: Add the tokenizer's special tokens to prompts.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary_size: int,
        fallback_token: int,
        max_prompt_tokens: int | None,
        add_special_tokens: bool = True,
    ) -> None:
        self._tokenizer: Any = tokenizer
        self._vocabulary_size = vocabulary_size
        self._fallback_token = fallback_token
        self._max_prompt_tokens = max_prompt_tokens
        self._add_special_tokens = add_special_tokens
        self._prompts, self._candidates = _Remembered(), _Remembered()

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts, with special tokens if `add_special_tokens`; never empty."""
        return self._remembered(self._prompts, texts, self._add_special_tokens, self._finish_prompt)

    def candidates(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without special tokens; empty for an empty text."""
        return self._remembered(self._candidates, texts, special_tokens=False, finish=list)

    def _remembered(
        self,
        memory: _Remembered,
        texts: Sequence[str],
        special_tokens: bool,
        finish: Callable[[list[int]], list[int]],
    ) -> list[list[int]]:
        new = [text for text in dict.fromkeys(texts) if text not in memory.ids]
        if new and (len(memory.ids) + len(new) > _REMEMBERED_TEXTS or memory.tokens > _REMEMBERED_TOKENS):
            memory.ids.clear()
            memory.tokens = 0
            new = list(dict.fromkeys(texts))
        if new:
            # verbose=False: the tokenizer's own length warning knows less than our check of the prompt's length
            encoded = self._tokenizer(new, add_special_tokens=special_tokens, verbose=False)["input_ids"]
            for text, ids in zip(new, encoded, strict=True):
                self._check(text, ids)
                memory.ids[text] = finish(ids)
                memory.tokens += len(memory.ids[text])
        return [memory.ids[text] for text in texts]

    def _finish_prompt(self, ids: list[int]) -> list[int]:
        ids = ids or [self._fallback_token]
        limit = self._max_prompt_tokens
        if limit is None or len(ids) <= limit:
            return ids
        begins = limit > 1 and ids[0] == self._tokenizer.bos_token_id
        return [ids[0], *ids[len(ids) - limit + 1 :]] if begins else ids[len(ids) - limit :]

    def _check(self, text: str, ids: list[int]) -> None:
        if ids and max(ids) >= self._vocabulary_size:
            raise GroundlingError(
                f"the tokenizer gives token {max(ids)} for {text[:40]!r}, but the model has only "
                f"{self._vocabulary_size} embeddings: the tokenizer is not this model's"
            )
