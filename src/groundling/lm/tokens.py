"""Tokenize a model's prompts and candidates, with a cache and checks of their length and vocabulary."""

from collections.abc import Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from groundling.errors import ConfigError, GroundlingError, RunError, warn_caller
from groundling.lm.read.batching import ScoringQuestion
from groundling.tokenization.chat import Chat
from groundling.tokenization.encoding import TextEncoder

# Strings, or token ids including special tokens. If prompts of token ids share a prefix, such as the earlier steps of
# a conversation, the prefix is read only once, provided that the result is exact.
Prompts = Sequence[str] | Sequence[list[int]]

_MAX_REMEMBERED = 2**22  # Maximum number of cached tokens, about 150 MB of Python integers
_ROOM_TO_ANSWER = 128  # Tokens reserved for the answer in a conversation, but at most a quarter of the context


class ModelTokens:
    """The tokenization part of a `LanguageModel`. An empty prompt is replaced with ``fallback_token``."""

    def __init__(
        self,
        tokenizer: Any,
        vocabulary_size: int,
        fallback_token: int,
        max_positions: int | None,
        is_encoder_decoder: bool,
        max_prompt_tokens: int | None,
        add_special_tokens: bool = True,
    ) -> None:
        self.tokenizer: Any = tokenizer
        self.text_encoder = TextEncoder(tokenizer)
        self.vocabulary_size = vocabulary_size
        self.max_positions = max_positions
        self._fallback_token = fallback_token
        self.is_encoder_decoder = is_encoder_decoder
        self.max_prompt_tokens = max_prompt_tokens
        self.add_special_tokens = add_special_tokens
        self._known: dict[tuple[str, bool], list[int]] = {}  # keyed by (text, is_prompt)
        self._num_known = 0
        self._chat: Chat | None = None
        self._has_cut = False

    @property
    def room(self) -> int | None:
        """Maximum number of prompt tokens, as configured or chosen to leave room for an answer; None if unlimited."""
        if self.max_prompt_tokens is not None or self.max_positions is None:
            return self.max_prompt_tokens
        return self.max_positions - min(_ROOM_TO_ANSWER, self.max_positions // 4)

    @property
    def chat(self) -> Chat:
        """The tokenizer's chat template; raises `GroundlingError` if the template cannot be used."""
        if self._chat is None or self._chat.source != self.tokenizer.chat_template:
            self._chat = Chat(self.tokenizer)
            self.text_encoder = self._chat.encoder
        return self._chat

    def mask(self, words: str) -> str:
        """Mark control tokens spelled out in a world's text so that they are read as plain text."""
        return self.text_encoder.mask(words)

    def unmask(self, text: str) -> str:
        """Undo `mask`."""
        return self.text_encoder.unmask(text)

    def questions(
        self, prompts: Prompts, candidates: Sequence[str] | Sequence[Sequence[str]]
    ) -> tuple[list[Sequence[str]], list[ScoringQuestion]]:
        """Tokenize prompts and candidates (one list for all, or one per prompt); also return candidates as strings."""
        if isinstance(prompts, str) or isinstance(candidates, str):
            raise ConfigError("prompts and candidates must be lists of strings: wrap a single string in a list")
        shared = all(isinstance(candidate, str) for candidate in candidates)
        texts = cast(list[Sequence[str]], [candidates] * len(prompts) if shared else list(candidates))
        if len(texts) != len(prompts):
            raise ConfigError(f"got {len(prompts)} prompts, but candidates for {len(texts)}")
        for index, options in enumerate(texts):
            if not len(options):
                raise ConfigError(f"prompt {index} has no candidates: pass at least one")
        flat = iter(self.candidate_tokens([text for options in texts for text in options]))
        tokens = [[next(flat) for _ in options] for options in texts]
        for index, prompt in enumerate(cast(Sequence[Sequence[int]], prompts) if growing(prompts) else ()):
            if self._asks(prompt):
                tokens[index] = self.candidate_tokens(texts[index], answers=True)
        room = max((max(map(len, options)) for options in tokens), default=0)
        return texts, list(map(ScoringQuestion, self.prompt_tokens(prompts, room), tokens))

    def prompt_tokens(self, prompts: Prompts | Sequence[Sequence[int]], room: int = 0) -> list[list[int]]:
        """Return the prompts' token ids, never empty; raise if a prompt and ``room`` tokens exceed the context."""
        if all(isinstance(prompt, str) for prompt in prompts):
            tokens = self._encode_texts(cast(Sequence[str], prompts), True)
        else:
            tokens = [list(prompt) for prompt in cast(Sequence[Sequence[int]], prompts)]
        if self.max_positions is None:
            return tokens
        if self.is_encoder_decoder and room > self.max_positions:
            raise RunError(
                f"up to {room} tokens follow a prompt, but this model's decoder has room for {self.max_positions}: "
                "reduce max_new_tokens, or use shorter candidates"
            )
        # A candidate's last token is predicted, never read; a decoder does not read the prompt.
        limit = self.max_positions - (0 if self.is_encoder_decoder else max(0, room - 1))
        for index, ids in enumerate(tokens):
            if len(ids) > limit:
                raise RunError(
                    f"prompt {index} has {len(ids)} tokens, but this model has room for {limit}: shorten it, or load "
                    f"the model with max_prompt_tokens={limit} (in a run, model.max_prompt_tokens={limit}) to keep "
                    "only the last ones"
                )
        return tokens

    def token_lengths(self, prompts: Sequence[str]) -> list[int]:
        """Return the number of tokens that the model reads for each prompt; cached, so repeated calls are cheap."""
        return [len(tokens) for tokens in self._encode_texts(prompts, True)]

    def candidate_tokens(self, texts: Sequence[str], answers: bool = False) -> list[list[int]]:
        """Return the token ids of strings that follow a prompt, without special tokens.

        With ``answers``, they are tokenized as continuations of the chat template's text, except for encoder-decoders.
        """
        if not answers or self.is_encoder_decoder or not self.tokenizer.chat_template:
            return self._encode_texts(texts, False)
        tokens = [[*self.chat.lead, *ids] for ids in self.chat.answers(texts)]
        for text, ids in zip(texts, tokens, strict=True):
            self._check_vocabulary(text, ids)
        return tokens

    def _encode_texts(self, texts: Sequence[str], prompts: bool) -> list[list[int]]:
        """Tokenize strings, using the cache."""
        new = [text for text in dict.fromkeys(texts) if (text, prompts) not in self._known]
        if new and self._num_known > _MAX_REMEMBERED:
            self._known, self._num_known, new = {}, 0, list(dict.fromkeys(texts))
        special_tokens = prompts and self.add_special_tokens
        for text, ids in zip(new, self.text_encoder.encode_all(new, special_tokens) if new else (), strict=True):
            self._check_vocabulary(text, ids)
            self._known[text, prompts] = self._finish_prompt(ids) if prompts else ids
            self._num_known += 1 + len(ids)
        return [self._known[text, prompts] for text in texts]

    def _finish_prompt(self, ids: list[int]) -> list[int]:
        ids, bos, limit = ids or [self._fallback_token], self.tokenizer.bos_token_id, self.max_prompt_tokens
        if len(ids) > 1 and ids[0] == ids[1] == bos:
            warn_caller(
                f"a prompt starts with {self.tokenizer.bos_token} twice, once from its text and once from the "
                "tokenizer: remove it from the text, pass token ids, or load the model with add_special_tokens=False"
            )
        if limit is None or len(ids) <= limit:
            return ids
        if not self._has_cut:
            self._has_cut = True
            warn_caller(
                f"a prompt of {len(ids)} tokens is truncated to its last {limit}, as are all longer prompts: its "
                "beginning, such as the world's goal and actions, is not read. Raise model.max_prompt_tokens, or "
                "shorten prompts with world.history or policy.args.prompt"
            )
        begins = limit > 1 and ids[0] == bos
        return [ids[0], *ids[len(ids) - limit + 1 :]] if begins else ids[len(ids) - limit :]

    def _check_vocabulary(self, text: str, ids: list[int]) -> None:
        if not ids and text.strip():  # it would be as probable as an empty text, which is certain
            raise ConfigError(f"the tokenizer has no tokens for {text[:40]!r}: use only characters in its vocabulary")
        if ids and max(ids) >= self.vocabulary_size:
            raise ConfigError(
                f"the tokenizer returns token {max(ids)} for {text[:40]!r}, but the model has only "
                f"{self.vocabulary_size} embeddings: the tokenizer does not belong to this model"
            )

    def _asks(self, prompt: Sequence[int]) -> bool:
        """Return True for a prompt that ends with the template's generation prompt."""
        try:
            return bool(self.tokenizer.chat_template) and self.chat.asks(prompt)
        except GroundlingError:  # raised again when a conversation is encoded
            return False


def growing(prompts: Prompts) -> bool:
    """Return True if the prompts are token ids, which may be the steps of conversations."""
    return not isinstance(prompts[0], str) if len(prompts) else False


def indistinguishable(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[str]]:
    """Return groups of different strings that have the same token ids, in the order of ``texts``."""
    # Tokenizers encode all unknown characters (for T5, ``{`` and ``}``) as the same token; some drop case or accents.
    distinct = list(dict.fromkeys(texts))
    groups: dict[tuple[int, ...], list[str]] = {}
    if distinct:
        encoded: Any = tokenizer(distinct, add_special_tokens=False, verbose=False)["input_ids"]
        for text, ids in zip(distinct, encoded, strict=True):
            groups.setdefault(tuple(ids), []).append(text)
    return [group for group in groups.values() if len(group) > 1]
