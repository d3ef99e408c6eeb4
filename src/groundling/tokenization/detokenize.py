"""Decode generated token ids as the continuation of a prompt.

SentencePiece and WordPiece tokenizers decode the first token of a text differently: decoded alone, the generation
``▁red`` after ``You see a`` becomes ``red``, without its leading space.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

# Maximum numbers of tokens that are decoded again with each new one: before the generation, and at its end
_CONTEXT, _WINDOW = 8, 32
_BYTES = 4  # Maximum number of byte tokens in a character


class Continuation:
    """Decodes a generation, as a whole or token by token in linear time.

    ``prompt`` contains the token ids before the generation; it is empty for encoder-decoders, whose decoder starts a
    new text. A prompt that ends with the tokenizer's end token is treated as empty.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        if prompt and prompt[-1] == tokenizer.eos_token_id:
            prompt = ()
        for length in range(_CONTEXT, _CONTEXT + _BYTES):
            self._context = list(prompt[-length:])
            self._before = self._decoded(self._context)
            if "\ufffd" not in self._before:  # otherwise, the context may start within a character
                break
        if not self._before:  # only special tokens
            self._context = list(prompt)
            self._before = self._decoded(self._context)
        self._settled = ""
        self._window: list[int] = []

    def append(self, *tokens: int) -> str:
        """Add tokens, and return the decoded text of all tokens so far."""
        self._window += tokens
        text = self._decoded([*self._context, *self._window])
        common = len(self._before)
        if not text.startswith(self._before):  # a new token completes a character
            common = next(i for i in range(common) if self._before[i : i + 1] != text[i : i + 1])
        kept = max(0, len(self._settled) - len(self._before) + common)
        text = self._settled[:kept] + text[common:]
        if len(self._window) >= _WINDOW:
            context = self._window[-_CONTEXT:]
            before = self._decoded(context)
            if before and "\ufffd" not in before and text.endswith(before):  # otherwise, it would split a character
                self._settled, self._context, self._before, self._window = text, context, before, []
        return text

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=self._skips)) if tokens else ""
