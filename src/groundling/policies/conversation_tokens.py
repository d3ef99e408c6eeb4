"""Conversations as token ids that fit the language model's context."""

import itertools
import warnings

from groundling.lm import LanguageModel
from groundling.prompts import Conversation
from groundling.tokenization.chat import first_turn


class ConversationTokens:
    """Encodes conversations by a model's chat template, cut to its context length less ``answer_tokens``."""

    def __init__(self, lm: LanguageModel, answer_tokens: int) -> None:
        self._chat, self._room = lm.chat, lm.room
        if self._room is not None and lm.max_positions is not None:
            self._room = min(self._room, lm.max_positions - answer_tokens - len(lm.chat.lead))

    def __call__(self, conversation: Conversation) -> list[int]:
        turns = [(answer, conversation.message(turn)) for turn, answer in enumerate(conversation.answers, start=1)]
        first = 0
        if self._room is not None:
            lengths = [0, *(len(self._chat.turn(*turn)) for turn in turns)]
            first = first_turn(lambda turn: len(self._opening(conversation, turn)), lengths, self._room)
        for begin in range(first, len(turns) + 1):  # the lengths of turns may be estimates
            words = [conversation.first_message(begin), *itertools.chain.from_iterable(turns[begin:])]
            tokens = self._chat.tokens(conversation.system, words)
            if self._room is None or len(tokens) <= self._room:
                if begin:
                    self._warn("conversations", "leave out their first turns")
                return tokens
        self._warn("turns", "lose their beginning, with the goal and the actions")
        return self._opening(conversation, len(turns), self._room)

    def _opening(self, conversation: Conversation, turn: int, room: int | None = None) -> list[int]:
        return self._chat.opening(conversation.system, conversation.first_message(turn), room)

    def _warn(self, kind: str, cut: str) -> None:
        # Python shows equal warnings once.
        warnings.warn(
            f"{kind} of more than {self._room} tokens {cut}: raise model.max_prompt_tokens as far as the model's "
            "context length allows, or shorten episodes or observations",
            stacklevel=4,
        )
