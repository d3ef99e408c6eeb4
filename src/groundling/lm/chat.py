"""Conversations as tokens, by a model's chat template or in a plain form, in parts that never change once read.

A template (https://huggingface.co/docs/transformers/chat_templating) is a program that prints a whole conversation. An
agent's grows by a turn at each step, and what was read must stay the beginning of what is read next. So the template is
asked once, with stand-ins for what is said, for the texts *around* a user's and an assistant's words; parts are then
encoded one by one. What users say is encoded as plain text: a world cannot write the tokens that end its turn.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Literal, Self

from transformers import PreTrainedTokenizerBase

from groundling.errors import GroundlingError

_SYSTEM, _FIRST, _ANSWER, _SECOND = "SYSTEMWORDS", "FIRSTWORDS", "ANSWERWORDS", "SECONDWORDS"
"""What stands in a template's place for what is said."""
_REMEMBERED = 100_000
_SAME_DAY = (
    "{%- macro strftime_now(format) -%}{{ format | replace('%d', '26') | replace('%b', 'Jul') | replace('%B', 'July')"
    " | replace('%m', '07') | replace('%Y', '2024') | replace('%y', '24') }}{%- endmacro -%}"
)
"""Before a template: one that prints the date would have a run read other prompts on another day. The day is that which
Llama 3's templates name where nobody tells it."""


@dataclass(frozen=True)
class Frame:
    """The texts around what is said.

    A conversation is ``opening`` (with the system prompt in it), the user's words, ``answer``, the assistant's words,
    ``next``, the user's words, ``answer``, and so on.
    """

    without_system: str
    """Before the user's first words where no system prompt is given; a template may have one of its own."""
    before_system: str
    after_system: str
    """Up to the user's first words."""
    answer: str
    """From the user's words to the assistant's, which is what the template calls its generation prompt."""
    next: str
    """From the assistant's words to the user's."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """As the tokenizer's chat template tells; the plain form where it has none.

        Raises:
            GroundlingError: the template does not leave what is said as it is, or not in its order.
        """
        if not tokenizer.chat_template:
            return cls("", "", "\n\n", "\n", "\n")
        said = [
            {"role": role, "content": words}
            for role, words in (("user", _FIRST), ("assistant", _ANSWER), ("user", _SECOND))
        ]
        merged = [{"role": "user", "content": f"{_SYSTEM}\n\n{_FIRST}"}, *said[1:]]
        problems = []
        # A template that knows no system prompt raises, leaves it out, or puts it elsewhere. One of a vision-language
        # model may take contents in parts alone.
        ways = [[{"role": "system", "content": _SYSTEM}, *said], merged]
        for in_parts, messages in itertools.product((False, True), ways):
            try:
                alone = _rendered(tokenizer, said[:1], in_parts).partition(_FIRST)[0]
                parts = _split(_rendered(tokenizer, messages, in_parts))
            except Exception as error:  # a template raises what it likes
                problems.append(_line(error))
                continue
            before_system, after_system, before_answer, following, answer = parts
            if before_answer != answer:
                warnings.warn(
                    f"the chat template writes {before_answer!r} before the assistant's past messages, and "
                    f"{answer!r} before its next one: past actions are put after the second text, too",
                    stacklevel=2,
                )
            return cls(alone, before_system, after_system, answer, following)
        raise GroundlingError(
            f"the chat template cannot be used: {problems[0]} (with the system prompt among the user's words: "
            f"{problems[1]}); name a tokenizer with another one (model.tokenizer=…)"
        )


def _split(whole: str) -> list[str]:
    """What stands around the stand-ins."""
    parts = [whole]
    for words in (_SYSTEM, _FIRST, _ANSWER, _SECOND):
        if parts[-1].count(words) != 1:
            raise ValueError(f"it does not write each message once and in order: {whole[:80]!r}")
        parts[-1:] = parts[-1].split(words)
    return parts


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], in_parts: bool) -> str:
    template = f"{_SAME_DAY}{tokenizer.get_chat_template()}"
    shaped: list[dict[str, Any]] = [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if in_parts else dict(one)
        for one in messages
    ]
    return str(
        tokenizer.apply_chat_template(
            shaped, chat_template=template, tokenize=False, add_generation_prompt=True
        )
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def first_turn(opening: Callable[[int], int], turns: Sequence[int], room: int) -> int:
    """With which turn the last step's prompt begins, so that all of it fits.

    A conversation that becomes too long begins anew with the last turns that fill half of the room, or with the last
    one alone, however long that is. Then it grows again, so that it is seldom read anew.

    Args:
        opening: Tokens of the opening if it is that of a turn.
        turns: Tokens of each turn after what was said before; the first one's is not looked at.
        room: Tokens of a prompt, at most.
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


@dataclass
class Chat:
    """Encodes a conversation turn by turn.

    Args:
        tokenizer: Of the model.
        frame: The texts around what is said; by default those of its chat template.
    """

    tokenizer: PreTrainedTokenizerBase
    frame: Frame | None = None
    _known: dict[tuple[str, bool], list[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._frame = Frame.of(self.tokenizer) if self.frame is None else self.frame
        frame = "".join(astuple(self._frame))
        self._turn_tokens = [
            token.content
            for token in self.tokenizer.added_tokens_decoder.values()
            if not token.special and len(token.content) > 1 and token.content in frame
        ]
        alone = self._encoded("a", said=True)
        whole: Any = self.tokenizer("a")["input_ids"]
        # Some tokenizers write something at a text's end, too.
        self._beginning = list(
            whole[: next(i for i in range(len(whole)) if whole[i : i + len(alone)] == alone)]
        )

    def opening(
        self,
        system: str | None,
        words: str,
        room: int | None = None,
        truncation_side: Literal["left", "right"] = "left",
    ) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks first.

        Args:
            system: The system prompt, in the place of one that the template has of its own; None: that one, if any.
            words: What the user says first.
            room: How many tokens there may be at most; of longer words some are left out.
            truncation_side: Where: ``left`` keeps their end, ``right`` their beginning.

        Raises:
            GroundlingError: the room does not hold what stands around the words, and one of them.
        """
        frame = self._frame
        before = self._encoded(frame.without_system if system is None else frame.before_system, said=False)
        if system is not None:
            after = self._encoded(frame.after_system, said=False)
            before = [*before, *self._encoded(system, said=True), *after]
        if before[: len(self._beginning)] != self._beginning:  # or the template wrote it
            before = [*self._beginning, *before]
        said, end = self._encoded(words, said=True), self._encoded(frame.answer, said=False)
        if room is not None and (left := room - len(before) - len(end)) < len(said):
            if left < 1:
                raise GroundlingError(
                    f"a prompt of {room} tokens has no room for words: its chat template and system prompt take "
                    f"{len(before) + len(end)}"
                )
            said = said[-left:] if truncation_side == "left" else said[:left]
        return [*before, *said, *end]

    def conversation(
        self,
        system: str | None,
        earlier: Sequence[tuple[str, str]],
        words: str,
        room: int | None = None,
        truncation_side: Literal["left", "right"] = "left",
    ) -> list[int]:
        """Token ids of a whole conversation up to where the assistant speaks; its first turns are left out where there
        is no room for them.

        Args:
            earlier: A user's words and the answer to them, one after the other.
            system, words, room, truncation_side: As of `opening`, of what the user says last.
        """
        said = [*(user for user, _ in earlier), words]
        for first in range(len(earlier)):
            tokens = self.opening(system, said[first])
            for (_, answer), following in zip(earlier[first:], said[first + 1 :], strict=True):
                tokens += self.turn(answer, following)
            if room is None or len(tokens) <= room:
                return tokens
        return self.opening(system, words, room, truncation_side)

    def turn(self, answer: str, words: str) -> list[int]:
        """Token ids of what follows: the assistant's answer, the user's words, up to where the assistant speaks."""
        return [
            *self._encoded(answer, said=True),
            *self._encoded(self._frame.next, said=False),
            *self._encoded(words, said=True),
            *self._encoded(self._frame.answer, said=False),
        ]

    def _encoded(self, text: str, *, said: bool) -> list[int]:
        """Token ids without a beginning or an end; what is said has no special tokens."""
        key = text, said
        if key not in self._known:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            parts = self._apart(text) if said else [text]
            self._known[key] = [token for part in parts for token in self._tokens(part, said)]
        return self._known[key]

    def _tokens(self, text: str, said: bool) -> list[int]:
        encoded: Any = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=said, verbose=False
        )["input_ids"]
        return list(encoded)

    def _apart(self, text: str) -> list[str]:
        """What is said, in pieces none of which spells a token of the template that is not marked as special.

        ``split_special_tokens`` takes apart those alone that are, and some templates' turns begin with others.
        """
        cuts = [
            match.end() - 1 for token in self._turn_tokens for match in re.finditer(re.escape(token), text)
        ]
        return [text[begin:end] for begin, end in itertools.pairwise([0, *sorted(set(cuts)), len(text)])]
