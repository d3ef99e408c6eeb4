"""Samples of text generation, and the pools that they come from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

from groundling.errors import ConfigError, GroundlingError, unknown
from groundling.registry import Registry

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Sample:
    """A prompt, with its references."""

    id: str  # Name within the pool and split
    prompt: str  # Text that the language model reads
    references: tuple[str, ...] = ()  # Good texts for metrics and rewards that compare; maybe empty
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Further data for metrics and rewards: concepts, a table, an intent."""
    earlier: tuple[tuple[str, str], ...] = ()
    """Earlier turns of a conversation, pairs (user's message, answer), for the chat template (``world.chat=true``)."""
    system: str | None = None  # System prompt of the conversation; None: the run's
    data: tuple[str, ...] = ()
    """Parts of the prompt, in order, that come from a dataset. Control tokens in them are read as plain text; in the
    rest of the prompt, which comes from a pool's settings, they are control tokens."""

    @classmethod
    def of_messages(cls, id: str, messages: Sequence[Mapping[str, str]], **more: Any) -> Self:
        """Make a sample of a conversation in the format of chat servers and Transformers' templates.

        Messages are ``{"role": …, "content": …}``: maybe a system prompt, then user and assistant in turn. The prompt
        is the user's last message; an answer after it is a reference. ``more`` has the other fields.

        Raises:
            GroundlingError: The messages have another form.
        """
        messages, references = list(messages), more.pop("references", ())
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
                raise GroundlingError(
                    f"sample {id}: {message!r:.80} is no message: expected {{role: …, content: TEXT}}"
                )
        roles = [message.get("role") for message in messages]
        words = [message["content"] for message in messages]
        system = None
        if roles[:1] == ["system"]:
            system, roles = words.pop(0), roles[1:]
        if not roles or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2):
            raise GroundlingError(
                f"sample {id}: expected messages of a user and the assistant in turn, after a system prompt or none; "
                f"got {roles}"
            )
        if len(roles) % 2 == 0:
            references = (words.pop(), *references)
        earlier = tuple(zip(words[:-1:2], words[1:-1:2], strict=True))
        return cls(id, words[-1], tuple(references), earlier=earlier, system=system, **more)

    def __post_init__(self) -> None:
        if not all(isinstance(turn, tuple) and len(turn) == 2 for turn in self.earlier):
            raise GroundlingError(
                f"sample {self.id}: earlier must be pairs of a user's words and the answer, got {self.earlier!r:.80}"
            )
        if not isinstance(self.references, tuple | list):
            raise GroundlingError(
                f"sample {self.id}: references must be a tuple of texts, such as ('on it',), got "
                f"{self.references!r:.80}"
            )
        turns = [text for turn in self.earlier for text in turn]
        for text in (self.prompt, *self.references, *turns, *([] if self.system is None else [self.system])):
            if not isinstance(text, str):
                raise GroundlingError(f"sample {self.id}: prompt and references must be texts, got {text!r:.80}")
            try:
                text.encode()
            except UnicodeEncodeError:  # JSON can have half a character, which no tokenizer reads
                raise GroundlingError(
                    f"sample {self.id}: {text!r:.80} holds half a surrogate pair, such as \\ud83d, which is no "
                    "character: leave it out"
                ) from None


class Pool(ABC):
    """A source of samples. Implement `prepare`, and register the class by `pools.register("its-id")`."""

    has_splits: ClassVar[bool] = True  # False if all splits have the same samples by design, which needs no warning

    @abstractmethod
    def prepare(self, split: Split) -> Sequence[Sample]:
        """Return all samples of a split, in a fixed order.

        Raises:
            GroundlingError: Its data are unavailable, or have no samples.
        """


pools: Registry[Pool] = Registry("pool")


def check_split(split: str) -> None:
    if split not in get_args(Split):
        raise ConfigError(unknown("split", split, get_args(Split)))
