"""Tokens that end a text, or an assistant's turn in a conversation."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from transformers import PreTrainedTokenizerBase

from groundling.errors import GroundlingError
from groundling.tokenization.templates import ChatTemplate


@dataclass(frozen=True)
class EndTokens:
    """Token ids at which a model ends its texts.

    Chat models often have several: Llama 3 ends texts with ``<|end_of_text|>`` and turns with ``<|eot_id|>``.
    """

    # Sorted, from the tokenizer, the generation config and the chat template. Generation stops at each of them, and
    # the probability that a text ends is their sum.
    ids: tuple[int, ...]
    of_text: int | None  # Ends a plain text in training data: the tokenizer's; None if there is no end token
    of_turn: int | None  # Ends an answer in a conversation: the chat template's, or ``of_text``

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, generation_config: Any = None, vocabulary_size: int | None = None
    ) -> Self:
        """Find the end tokens of a tokenizer and its model; those from ``vocabulary_size`` on cannot be generated."""
        configured: Any = getattr(generation_config, "eos_token_id", None)
        known = [tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])]
        template = getattr(tokenizer, "chat_template", None)
        turn = _end_of_turn(tokenizer, str(template)) if template else None
        ids = [
            token
            for token in (*known, turn)
            if token is not None and (vocabulary_size is None or token < vocabulary_size)
        ]
        of_text = ids[0] if ids else None
        return cls(tuple(sorted(set(ids))), of_text, turn if turn in ids else of_text)


@lru_cache(maxsize=64)
def _end_of_turn(tokenizer: PreTrainedTokenizerBase, template: str) -> int | None:
    """Return the added token that the chat template writes right after an answer, or None."""
    try:
        text = ChatTemplate(tokenizer).render(None, ["FIRSTWORDS", "ANSWERWORDS", "SECONDWORDS"])
    except GroundlingError:  # raised again where a conversation is read
        return None
    following = text.partition("ANSWERWORDS")[2].lstrip()
    tokens = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    begun = [text for text in tokens if len(text.strip()) > 1 and following.startswith(text)]
    return tokens[max(begun, key=len)] if begun else None
