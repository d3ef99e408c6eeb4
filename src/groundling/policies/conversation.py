"""Prompts as a policy's language model reads them: texts, or conversations in token ids."""

import itertools
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from groundling.envs.observation import TextObservation
from groundling.lm import LanguageModel, Prompts
from groundling.lm.read.transcript import chains
from groundling.policies.policy import Work
from groundling.prompts import Conversation, PromptReader
from groundling.tokenization.chat import first_turn


class ConversationReader:
    """Token ids of conversations, by the chat template of a model, cut to the room that it has.

    Args:
        lm: The model.

    Raises:
        GroundlingError: its template cannot be used.
    """

    def __init__(self, lm: LanguageModel, answer_tokens: int = 0) -> None:
        self._chat, self._room = lm.chat, lm.room
        if self._room is not None and lm.max_positions is not None:
            self._room = min(self._room, lm.max_positions - answer_tokens - len(lm.chat.lead))

    def __call__(self, conversation: Conversation) -> list[int]:
        answers = conversation.answers
        said = [(answer, conversation.words(turn)) for turn, answer in enumerate(answers, start=1)]
        first = 0
        if self._room is not None:
            lengths = [0, *(len(self._chat.turn(*turn)) for turn in said)]
            first = first_turn(lambda turn: len(self._opening(conversation, turn)), lengths, self._room)
        for begin in range(first, len(answers) + 1):  # the lengths of turns may be estimates
            words = [conversation.opening(begin), *itertools.chain.from_iterable(said[begin:])]
            tokens = self._chat.tokens(conversation.system, words)
            if self._room is None or len(tokens) <= self._room:
                if begin:
                    self._warn("conversations", "leave out their first turns")
                return tokens
        self._warn("turns", "lose their beginning, with the goal and the actions")
        return self._chat.opening(conversation.system, conversation.opening(len(answers)), self._room)

    def _warn(self, what: str, cut: str) -> None:
        """Python shows equal warnings once."""
        warnings.warn(
            f"{what} of more than {self._room} tokens {cut}: raise model.max_prompt_tokens as far as the model's "
            "context length allows, or shorten episodes or observations",
            stacklevel=3,
        )

    def _opening(self, conversation: Conversation, turn: int) -> list[int]:
        return self._chat.opening(conversation.system, conversation.opening(turn))


class PolicyPrompts:
    """What a policy reads of observations.

    Args:
        reader: Tells them.
        lm: The language model that reads; None: something else does, and takes texts.

    Attributes:
        answer_tokens: How many tokens are written after a conversation at most, for which it leaves room.
    """

    def __init__(self, reader: PromptReader, lm: LanguageModel | None) -> None:
        self._reader, self._lm, self.answer_tokens = reader, lm, 0
        self._conversations: ConversationReader | None = None

    def read(self, observations: Sequence[TextObservation], prompts: Sequence[str] | None = None) -> Prompts:
        """Texts, or token ids of conversations.

        Args:
            observations: What is told.
            prompts: The prompt of each, by its id; None: that of its episode.

        Raises:
            GroundlingError: as `ConversationReader`.
        """
        ids: Sequence[str | None] = prompts or [None] * len(observations)
        readings = [self._read(o, id) for o, id in zip(observations, ids, strict=True)]
        if self._lm is None:
            return [str(one) for one in readings]
        texts = [one for one in readings if isinstance(one, str)]
        if texts:
            return texts
        if self._conversations is None:
            self._conversations = ConversationReader(self._lm, self.answer_tokens)
        return [self._conversations(one) for one in readings if not isinstance(one, str)]

    def shown(self, observations: Sequence[TextObservation]) -> list[str]:
        """The same as texts, with the special tokens of a conversation's template."""
        prompts = self.read(observations)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if self._lm is None:
            return texts
        if texts:
            return [self._lm.unmask(text) for text in texts]
        tokens = [prompt for prompt in prompts if not isinstance(prompt, str)]
        return [str(self._lm.tokenizer.decode(ids)) for ids in tokens]

    def _read(self, observation: TextObservation, id: str | None) -> str | Conversation:
        """A prompt, in which words of the world that spell control tokens are masked.

        Conversations encode all words as plain text. Control tokens of the experiment's own prompt are kept.
        """
        reading = self._reader.read(observation, id)
        if self._lm is None or isinstance(reading, Conversation) or self._lm.mask(reading) == reading:
            return reading
        return self._reader.read(observation.changed(self._lm.mask), id)

    def keeping(self) -> AbstractContextManager[None]:
        """A time in which the model's weights stay as they are (see `LanguageModel.keeping`)."""
        return nullcontext() if self._lm is None else self._lm.keeping()

    @property
    def kept_bytes(self) -> int:
        """What the model kept of them in the last such time."""
        return 0 if self._lm is None else self._lm.kept_bytes

    def work(self, observations: Sequence[TextObservation]) -> list[Work] | None:
        """What it takes a model to read each: equal texts are read once, the steps of a conversation as one text."""
        if self._lm is None:
            return None
        prompts = self.read(observations)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if texts:
            return [
                Work(tokens, text) for tokens, text in zip(self._lm.token_lengths(texts), texts, strict=True)
            ]
        tokens = [prompt for prompt in prompts if not isinstance(prompt, str)]
        numbers = {index: number for number, chain in enumerate(chains(tokens)) for index in chain}
        return [Work(len(ids), numbers[index], numbers[index]) for index, ids in enumerate(tokens)]
