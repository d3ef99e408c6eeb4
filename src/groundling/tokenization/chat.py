"""Encode conversations as the token ids that the tokenizer's chat template yields.

A conversation is rendered with the template and encoded as one text, as in Transformers' ``apply_chat_template``. As
long as the tokens of a longer conversation start with those of a shorter one, only the new turn is rendered and
encoded. Messages are encoded as plain text, so a world cannot produce the tokens that end its turn.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

from transformers import PreTrainedTokenizerBase

from groundling.errors import ConfigError, GroundlingError, warn_caller
from groundling.tokenization.encoding import TextEncoder
from groundling.tokenization.templates import ChatTemplate

_MAX_REMEMBERED = 100_000
_WORDS, _ANSWER = "You see it.", "ANSWERWORDS"  # Placeholders for the user message before a turn, and for an answer
_CALL = frozenset({"<tool_call>", "</tool_call>"})  # Added tokens of many models, which an answer may contain
_ENDING = 3  # Number of final tokens by which a generation prompt is recognised


def first_turn(opening: Callable[[int], int], turns: Sequence[int], room: int) -> int:
    """Return the first turn to keep so that the last step's prompt fits in ``room`` tokens.

    A conversation that becomes too long restarts with the latest turns that fit in half of the room, or with only the
    last one, however long it is. It then grows again, so it is rarely reread from the start. ``opening`` returns the
    length in tokens of a conversation that starts with a given turn; ``turns`` lists the number that each turn adds.
    """
    first, length = 0, opening(0)
    for last in range(1, len(turns)):
        length += turns[last]
        if length > room:
            first, length, after = last, opening(last), 0
            while first and opening(first - 1) + after + turns[first] <= room // 2:
                after += turns[first]
                first -= 1
                length = opening(first) + after
    return first


class Chat:
    """Encodes conversations with a tokenizer's chat template or, without one, in a plain format: one line per turn.

    Attributes:
        encoder: Encodes texts, with control tokens in messages as plain text.
        source: The template.
        why_whole: Reason for rendering conversations as a whole; None if `tokens` adds only the tokens of new turns.
        lead: Token ids that the template writes between its generation prompt and a final answer, such as Qwen 3's
            empty thinking block; whitespace that merges with the answer is part of the answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.encoder = TextEncoder(tokenizer)
        self.source = tokenizer.chat_template
        self._openings: dict[tuple[str | None, str, tuple[str, ...]], list[int]] = {}
        self._turns: dict[tuple[str, str, tuple[str, ...]], tuple[list[int], bool]] = {}
        self._takes_tools: dict[tuple[str, ...], bool] = {}
        self._answers: dict[str, list[int]] = {}
        self._longest, self._past_answers = 0, set[str]()
        self._template = ChatTemplate(tokenizer) if tokenizer.chat_template else None
        self._beginning: list[int] = []
        self.why_whole: str | None = None
        self._before, self._between, self.lead = "", "", list[int]()
        self._ending: list[int] = []
        if self._template is None:
            alone, whole = self.encoder.encode("a"), self.encoder.encode("a", special_tokens=True)
            # Some tokenizers also add a token at the end of a text.
            starts = (i for i in range(len(whole)) if whole[i : i + len(alone)] == alone)
            self._beginning = whole[: next(starts)]
            return
        self._before = self._text(None, [_WORDS])
        after = self._text(None, [_WORDS, _ANSWER, "x"])
        grows = after.startswith(self._before)
        self._between = after[len(self._before) : after.find(_ANSWER)] if grows else ""
        self.lead = self._find_lead()
        one, other = (self._whole(None, [words])[::-1] for words in (_WORDS, "x"))
        self._ending = one[: min(common_length(one, other), _ENDING)][::-1]
        if not grows:
            self._render_whole("the template writes different text before the last answer than before earlier ones")

    def _render_whole(self, why: str) -> None:
        self.why_whole = why
        name = self.tokenizer.name_or_path or type(self.tokenizer).__name__
        warn_caller(
            f"the chat template of {name} cannot be extended turn by turn ({why}): each conversation is rendered and "
            "encoded as a whole at each step, which is slower"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> "Chat":
        return self  # its cache is valid for every copy

    def takes_tools(self, tools: tuple[str, ...]) -> bool:
        """Return True if the template includes the ``tools``, given as JSON schemas, and their results."""
        if tools not in self._takes_tools:
            self._takes_tools[tools] = self._template is not None and self._template.takes_tools(tools)
        return self._takes_tools[tools]

    def opening(
        self,
        system: str | None,
        words: str,
        room: int | None = None,
        truncation_side: Literal["left", "right"] = "left",
        tools: tuple[str, ...] = (),
    ) -> list[int]:
        """Return a conversation's token ids up to the assistant's first message.

        Args:
            system: The system prompt, which replaces the template's own. If None, the template's own is used, if any.
            words: The first user message.
            room: Maximum number of tokens; the message is truncated to fit. If no token of it fits, an error is raised.
            truncation_side: ``left`` keeps the end of the message, ``right`` its beginning.
            tools: JSON schemas for a template that `takes_tools`.
        """
        tokens = self._opening(system, words, tools)
        if room is None or len(tokens) <= room:
            return list(tokens)
        one, other = (self._whole(system, [stand_in], tools) for stand_in in (_WORDS, "x"))
        begin, end = common_length(one, other), common_length(one[::-1], other[::-1])
        if (left := room - begin - end) < 1:
            raise ConfigError(
                f"a prompt of {room} tokens has no room for a message: the template and system prompt use {begin + end}"
            )
        said = tokens[begin : len(tokens) - end]
        said = said[-left:] if truncation_side == "left" else said[:left]
        return [*tokens[:begin], *said, *tokens[len(tokens) - end :]]

    def turn(self, answer: str, words: str, tools: tuple[str, ...] = ()) -> list[int]:
        """Return the token ids that a turn adds: the answer and the user message, up to the assistant's next message.

        If the template cannot be extended turn by turn, the result is approximate.
        """
        return list(self._turn(answer, words, tools)[0])

    def tokens(self, system: str | None, said: Sequence[str], tools: tuple[str, ...] = ()) -> list[int]:
        """Return a conversation's token ids up to the assistant's next message; earlier turns are cached."""
        # In ``said``, user and assistant messages alternate; the first and the last are the user's.
        turns = [self._turn(answer, words, tools) for answer, words in zip(said[1::2], said[2::2], strict=True)]
        if self.why_whole is None and not all(exact for _, exact in turns):
            self._render_whole("the prompt's last token merges with the answer's first token")
        if self.why_whole is not None:
            return self._whole(system, said, tools)
        tokens = [*self._opening(system, said[0], tools), *itertools.chain.from_iterable(added for added, _ in turns)]
        # A template may rewrite earlier parts of long conversations, or some answers, such as those with thoughts.
        new = set(said[1:-2:2]) - self._past_answers
        if self._template is not None and (new or len(said) > self._longest):
            if len(self._past_answers) > _MAX_REMEMBERED:
                self._past_answers.clear()
            self._past_answers |= new
            self._longest = max(self._longest, len(said))
            if (whole := self._whole(system, said, tools)) != tokens:
                self._render_whole("it rewrites earlier turns")
                return whole
        return tokens

    def conversation(
        self,
        system: str | None,
        earlier: Sequence[tuple[str, str]],
        words: str,
        room: int | None = None,
        truncation_side: Literal["left", "right"] = "left",
    ) -> list[int]:
        """Return the token ids of a conversation that is read only once, dropping its first turns if they do not fit.

        ``earlier`` contains pairs of a user message and an answer; for the other arguments, see `opening`.
        """
        for first in range(len(earlier) + 1):
            said = [*itertools.chain.from_iterable(earlier[first:]), words]
            tokens = self._whole(system, said)
            if room is None or len(tokens) <= room:
                return tokens
        return self.opening(system, words, room, truncation_side)

    def asks(self, prompt: Sequence[int]) -> bool:
        """Return True for a prompt that ends with the template's generation prompt."""
        return bool(self._ending) and list(prompt[-len(self._ending) :]) == self._ending

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of answers, as continuations of the template's text after `lead`."""
        # An answer that would merge with the template's last token is encoded separately.
        new = [text for text in texts if text not in self._answers]
        if len(self._answers) + len(new) > _MAX_REMEMBERED:
            self._answers.clear()
            new = list(texts)
        for text in new:
            before, masked = [*self._opening(None, _WORDS), *self.lead], self.encoder.mask(text)
            whole = self.encoder.encode(self._before + self._between + masked) if text else []
            joined = whole[: len(before)] == before
            self._answers[text] = whole[len(before) :] if joined else self.encoder.encode(masked)
        return [self._answers[text] for text in texts]

    def _find_lead(self) -> list[int]:
        try:
            last = self._text(None, [_WORDS, _ANSWER])
        except GroundlingError:  # the template rejects conversations that end with an answer
            return []
        between = last[len(self._before) : last.find(_ANSWER)]
        if not (last.startswith(self._before) and between.strip()):
            return []
        before = self._opening(None, _WORDS)
        alone, one, other = (self.encoder.encode(self._before + between + text) for text in ("", _ANSWER, "x"))
        if one[: len(before)] != before:
            return []
        self._between = between
        return one[len(before) : min(common_length(one, other), len(alone))]

    def _opening(self, system: str | None, words: str, tools: tuple[str, ...] = ()) -> list[int]:
        key = system, words, tools
        if key not in self._openings:
            if len(self._openings) > _MAX_REMEMBERED:
                self._openings.clear()
            self._openings[key] = self._whole(system, [words], tools)
        return self._openings[key]

    def _turn(self, answer: str, words: str, tools: tuple[str, ...] = ()) -> tuple[list[int], bool]:
        """Return the tokens that a turn adds, and whether the tokens before it are unchanged."""
        key = answer, words, tools
        if key not in self._turns:
            if len(self._turns) > _MAX_REMEMBERED:
                self._turns.clear()
            before, whole = self._opening(None, _WORDS, tools), self._whole(None, [_WORDS, answer, words], tools)
            same = common_length(before, whole)
            self._turns[key] = whole[same:], same == len(before)
        return self._turns[key]

    def _whole(self, system: str | None, said: Sequence[str], tools: Sequence[str] = ()) -> list[int]:
        """Return a conversation's token ids, rendered and encoded as one text."""
        if self._template is not None:
            return self.encoder.encode(self._text(system, said, tools))
        parts = [] if system is None else [system, "\n\n"]
        for words in said:
            parts += [words, "\n"]
        encoded = [self.encoder.encode(self.encoder.mask(part)) for part in parts]
        return [*self._beginning, *itertools.chain.from_iterable(encoded)]

    def _text(self, system: str | None, said: Sequence[str], tools: Sequence[str] = ()) -> str:
        """Render a conversation, with marks for control tokens that are spelled out in messages."""
        # Tokens that the template looks for in answers, such as the end of a thought, are not masked.
        assert self._template is not None
        encoder, render = self.encoder, self._template.render
        calls = _CALL if tools else frozenset[str]()

        def rendered(left: set[str]) -> str:
            masked = [encoder.mask(words, left | calls if i % 2 else ()) for i, words in enumerate(said)]
            return render(None if system is None else encoder.mask(system), masked, tools)

        text, left = rendered(set()), set[str]().union(*map(encoder.spelled, said[1::2]))
        if left and encoder.unmask(other := rendered(left)) != encoder.unmask(text):
            text = other
            for token in sorted(left):
                if encoder.unmask(other := rendered(left - {token})) == encoder.unmask(text):
                    left, text = left - {token}, other
        return text


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    shortest = min(len(one), len(other))
    return next((i for i in range(shortest) if one[i] != other[i]), shortest)
