"""Encode texts as token ids; control tokens spelled out in a world's or a dataset's text remain plain text."""

import json
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.errors import GroundlingError
from groundling.tokenization.templates import ChatTemplate

_HANGUL, _SYLLABLES = 0xAC00, 11_172
# Prefix of each mark. All models of a process share it, since a reference model reads its policy's prompts.
# Normalizers leave these letters unchanged, and authors of untrusted text cannot guess them, since they are random.
_KEY = "".join(chr(_HANGUL + secrets.randbelow(_SYLLABLES)) for _ in range(8))
_MARK = re.compile(rf"{_KEY}([0-9a-f]+);")


class TextEncoder:
    """Encodes texts so that text from a world or a dataset cannot produce control tokens.

    Control tokens are the special tokens, and other added tokens that occur in the chat template. `mask` replaces
    their spelling with marks that cannot be guessed. Marks pass through prompts and templates unchanged, and `encode`
    encodes them as the plain text that they stand for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Any = tokenizer
        template = str(tokenizer.chat_template or "")
        self._tokens = [
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if len(token.content.strip()) > 1  # a single character is always text
            and (token.special or token.content in template)
        ]
        longest_first = "|".join(map(re.escape, sorted(self._tokens, key=len, reverse=True)))
        firsts = re.escape("".join({token[0] for token in self._tokens}))
        self._spelled = re.compile(f"(?=[{firsts}])(?:{longest_first})" if firsts else "(?!)")
        self._renamed: Tokenizer | None = None

    def spelled(self, text: str) -> set[str]:
        return set(self._spelled.findall(text))

    def mask(self, words: str, leave: Collection[str] = ()) -> str:
        """Replace each control token that is spelled out in ``words`` with a mark, except tokens in ``leave``."""
        return self._spelled.sub(
            lambda match: match[0] if match[0] in leave else f"{_KEY}{match[0].encode().hex()};", words
        )

    def mask_parts(self, text: str, parts: Sequence[str]) -> str:
        """Mask the given parts of a text, listed in order of occurrence; the rest is unchanged."""
        done, rest = "", text
        for part in parts:
            before, found, rest = rest.partition(part) if part else ("", "", rest)
            done += before + self.mask(found)
        return done + rest

    def unmask(self, text: str) -> str:
        return _MARK.sub(lambda match: bytes.fromhex(match[1]).decode(), text)

    def encode(
        self,
        text: str,
        special_tokens: bool = False,
        max_length: int | None = None,
        side: Literal["left", "right"] = "left",
    ) -> list[int]:
        """Return a text's token ids, with marks as plain text; ``max_length`` applies only to texts with marks."""
        if _KEY not in text:
            return self.encode_all([text], special_tokens)[0]
        if not hasattr(self._tokenizer, "backend_tokenizer"):  # a slow tokenizer: separate characters with spaces
            apart = _MARK.sub(lambda match: bytes.fromhex(match[1]).decode().replace("", " ")[1:-1], text)
            return self.encode(apart, special_tokens)
        if self._renamed is None:
            self._renamed = self._rename()
        if max_length is None:
            self._renamed.no_truncation()
        else:
            self._renamed.enable_truncation(max_length, direction=side)
        written = self._spelled.sub(lambda match: self._name(match[0]), text)
        return list(self._renamed.encode(self.unmask(written), add_special_tokens=special_tokens).ids)

    def encode_all(self, texts: Sequence[str], special_tokens: bool = False) -> list[list[int]]:
        if any(_KEY in text for text in texts):
            return [self.encode(text, special_tokens) for text in texts]
        # verbose=False: the tokenizer's own length warning is less accurate than our checks of a prompt's length
        encoded = self._tokenizer(list(texts), add_special_tokens=special_tokens, verbose=False)["input_ids"]
        return [list(ids) for ids in encoded]

    def _name(self, token: str) -> str:
        """Return the unguessable name that `_rename` assigns to a control token."""
        return f"{_KEY[::-1]}{self._tokens.index(token)};"

    def _rename(self) -> Tokenizer:
        """Return the tokenizer with its control tokens renamed; their ids are unchanged."""
        names = {token: self._name(token) for token in self._tokens}
        state = json.loads(self._tokenizer.backend_tokenizer.to_str())
        for token in state["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        model = state["model"]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
        else:
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:  # merges would produce a renamed piece under its old name
            pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
            model["merges"] = [pair for pair in pairs if not {*pair, "".join(pair)} & names.keys()]
        renamed = Tokenizer.from_str(json.dumps(state))
        renamed.no_padding()
        return renamed

    def __deepcopy__(self, memo: dict[int, Any]) -> "TextEncoder":
        return self  # immutable, apart from the cached tokenizer


@dataclass(frozen=True)
class EndTokens:
    """Token ids with which a model ends its texts.

    Chat models often have several: Llama 3 ends texts with ``<|end_of_text|>`` and turns with ``<|eot_id|>``.
    """

    # Sorted, from the tokenizer, the generation config and the chat template. Generation stops at any of them, and the
    # probability that a text ends is the sum of their probabilities.
    ids: tuple[int, ...]
    of_text: int | None  # The tokenizer's end token, which ends plain texts in training data; None if it lacks one
    of_turn: int | None  # The chat template's end token, which ends answers in conversations, or ``of_text``

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, generation_config: Any = None, vocabulary_size: int | None = None
    ) -> Self:
        """Find the end tokens of a tokenizer and its model; ids from ``vocabulary_size`` on are never generated."""
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
    except GroundlingError:  # raised again when a conversation is rendered
        return None
    following = text.partition("ANSWERWORDS")[2].lstrip()
    tokens = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    begun = [text for text in tokens if len(text.strip()) > 1 and following.startswith(text)]
    return tokens[max(begun, key=len)] if begun else None
