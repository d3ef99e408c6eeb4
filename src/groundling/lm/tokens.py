"""Texts to token ids, remembered: policies ask for the same prompts and candidates again and again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from groundling.errors import GroundlingError
from groundling.tokenization.encoding import TextEncoder

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
        max_prompt_tokens: Longer prompts keep their last tokens (and their first, where it marks the beginning); the
            first such prompt gives a warning.
        add_special_tokens: Add the tokenizer's special tokens to prompts.

    Attributes:
        encoder: Encodes the texts, with control tokens in words that were masked by it as plain text.
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
        self.encoder = TextEncoder(tokenizer)
        self.vocabulary_size = vocabulary_size
        self._fallback_token = fallback_token
        self._max_prompt_tokens = max_prompt_tokens
        self._add_special_tokens = add_special_tokens
        self._prompts, self._candidates = _Remembered(), _Remembered()
        self._has_cut = False

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts, with special tokens if `add_special_tokens`; never empty."""
        return self._remembered(self._prompts, texts, self._add_special_tokens, self._finish_prompt)

    def candidates(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without special tokens; empty for an empty text."""
        return self._remembered(self._candidates, texts, special_tokens=False, finish=list)

    def _remembered(
        self, memory: _Remembered, texts: Sequence[str], special_tokens: bool, finish: Callable[[list[int]], list[int]]
    ) -> list[list[int]]:
        new = [text for text in dict.fromkeys(texts) if text not in memory.ids]
        if new and (len(memory.ids) + len(new) > _REMEMBERED_TEXTS or memory.tokens > _REMEMBERED_TOKENS):
            memory.ids.clear()
            memory.tokens = 0
            new = list(dict.fromkeys(texts))
        if new:
            for text, ids in zip(new, self.encoder.encode_all(new, special_tokens), strict=True):
                self.check(text, ids)
                memory.ids[text] = finish(ids)
                memory.tokens += len(memory.ids[text])
        return [memory.ids[text] for text in texts]

    def _finish_prompt(self, ids: list[int]) -> list[int]:
        ids = ids or [self._fallback_token]
        if len(ids) > 1 and ids[0] == ids[1] == self._tokenizer.bos_token_id:
            warnings.warn(
                f"a prompt begins with {self._tokenizer.bos_token} twice, from its text and from the tokenizer: "
                "give prompts without it, or as token ids, or load the model with add_special_tokens=False",
                stacklevel=2,
            )
        limit = self._max_prompt_tokens
        if limit is None or len(ids) <= limit:
            return ids
        if not self._has_cut:
            self._has_cut = True
            warnings.warn(
                f"a prompt of {len(ids)} tokens is cut to its last {limit}, and so is every longer one: its beginning, "
                "such as a world's goal and actions, is not read. Raise model.max_prompt_tokens, or shorten prompts by "
                "world.history or policy.args.prompt",
                stacklevel=2,
            )
        begins = limit > 1 and ids[0] == self._tokenizer.bos_token_id
        return [ids[0], *ids[len(ids) - limit + 1 :]] if begins else ids[len(ids) - limit :]

    def check(self, text: str, ids: list[int]) -> None:
        """Raise `GroundlingError` if the model has no embedding for a text's tokens."""
        if ids and max(ids) >= self.vocabulary_size:
            raise GroundlingError(
                f"the tokenizer gives token {max(ids)} for {text[:40]!r}, but the model has only "
                f"{self.vocabulary_size} embeddings: the tokenizer is not this model's"
            )


def indistinguishable(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[str]]:
    """Groups of different texts that are encoded as the same token ids, which a model cannot tell apart.

    Tokenizers that lack a character write it as the unknown token (T5's has no ``{`` and ``}``), and some change case
    or drop accents and blanks.

    Args:
        tokenizer: Any Transformers tokenizer.
        texts: Actions, goals or observations; repeated texts count once.

    Returns:
        Groups of two or more texts, each in the order of ``texts``; empty if all texts can be told apart.
    """
    distinct = list(dict.fromkeys(texts))
    groups: dict[tuple[int, ...], list[str]] = {}
    if distinct:
        encoded: Any = tokenizer(distinct, add_special_tokens=False, verbose=False)["input_ids"]
        for text, ids in zip(distinct, encoded, strict=True):
            groups.setdefault(tuple(ids), []).append(text)
    return [group for group in groups.values() if len(group) > 1]
