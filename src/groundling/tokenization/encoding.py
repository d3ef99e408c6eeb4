"""Texts to token ids; control tokens that words spell stay plain text."""

import json
import re
import secrets
from collections.abc import Collection, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

_HANGUL, _SYLLABLES = 0xAC00, 11_172
# Begins marks, the same for all models of a process, since a reference reads its policy's prompts. Normalizers leave
# these letters unchanged, and no world can know them.
_KEY = "".join(chr(_HANGUL + secrets.randbelow(_SYLLABLES)) for _ in range(8))
_MARK = re.compile(rf"{_KEY}([0-9a-f]+);")


class TextEncoder:
    """Encode texts in which the words of a world or a dataset write no control tokens.

    Control tokens are the special tokens, and other added tokens that the chat template names. `mask` replaces their
    spelling in words by marks that cannot be guessed. Marks pass unchanged through prompts and templates, and `encode`
    reads them as the plain text that they stand for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Any = tokenizer
        template = str(tokenizer.chat_template or "")
        self._tokens = [
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if len(token.content.strip()) > 1  # a single character is text, whatever it marks
            and (token.special or token.content in template)
        ]
        longest_first = "|".join(map(re.escape, sorted(self._tokens, key=len, reverse=True)))
        firsts = re.escape("".join({token[0] for token in self._tokens}))
        self._spelled = re.compile(f"(?=[{firsts}])(?:{longest_first})" if firsts else "(?!)")
        self._renamed: Tokenizer | None = None

    def spelled(self, text: str) -> set[str]:
        return set(self._spelled.findall(text))

    def mask(self, words: str, leave: Collection[str] = ()) -> str:
        """Replace each control token that words spell by a mark, except those to ``leave``."""
        return self._spelled.sub(
            lambda match: match[0] if match[0] in leave else f"{_KEY}{match[0].encode().hex()};", words
        )

    def mask_parts(self, text: str, parts: Sequence[str]) -> str:
        """Mask parts of a text, given in their order; the rest is unchanged."""
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
        """Return token ids of a text, its marks as plain text; cut texts with marks to ``max_length`` on ``side``."""
        if _KEY not in text:
            return self.encode_all([text], special_tokens)[0]
        if not hasattr(self._tokenizer, "backend_tokenizer"):  # not implemented in Rust: spell them with spaces
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
        # verbose=False: the tokenizer's own length warning knows less than our checks of a prompt's length
        encoded = self._tokenizer(list(texts), add_special_tokens=special_tokens, verbose=False)["input_ids"]
        return [list(ids) for ids in encoded]

    def _name(self, token: str) -> str:
        """Return the name of a control token in the renamed tokenizer, which no text spells."""
        return f"{_KEY[::-1]}{self._tokens.index(token)};"

    def _rename(self) -> Tokenizer:
        """Return the tokenizer with other names for its control tokens; their ids stay."""
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
        if "merges" in model:  # merges would write a renamed piece by its old name
            pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
            model["merges"] = [pair for pair in pairs if not {*pair, "".join(pair)} & names.keys()]
        renamed = Tokenizer.from_str(json.dumps(state))
        renamed.no_padding()
        return renamed

    def __deepcopy__(self, memo: dict[int, Any]) -> "TextEncoder":
        return self  # nothing in it changes
