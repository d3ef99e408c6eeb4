"""What a text generator is asked: samples, and the pools that they come from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from groundling.errors import ConfigError, GroundlingError
from groundling.registry import Registry, unknown

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Sample:
    """One text to be written."""

    id: str
    """Its name within the pool and split."""
    prompt: str
    """What the language model reads."""
    references: tuple[str, ...] = ()
    """Texts that would have been good, for metrics and rewards that compare; may be none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What else a metric or reward wants to know: concepts, the table, an intent."""

    def __post_init__(self) -> None:
        for text in (self.prompt, *self.references):
            if not isinstance(text, str):
                raise GroundlingError(
                    f"sample {self.id}: prompt and references must be texts, got {text!r:.80}"
                )
            try:
                text.encode()
            except UnicodeEncodeError:  # JSON can hold half a character, and no tokenizer reads it
                raise GroundlingError(
                    f"sample {self.id}: {text!r:.80} holds half a surrogate pair, such as \\ud83d, which is no "
                    "character: leave it out"
                ) from None


class Pool(ABC):
    """A source of samples. One of your own is this one method, and `pools.register("its-id")` above the class."""

    @abstractmethod
    def prepare(self, split: Split) -> Sequence[Sample]:
        """All samples of a split, in an order that is the same each time.

        Raises:
            GroundlingError: its data cannot be had, or there are no samples in it.
        """


pools: Registry[Pool] = Registry("pool")


def check_split(split: str) -> None:
    """Raise `ConfigError` if there is no such split."""
    if split not in get_args(Split):
        raise ConfigError(unknown("split", split, get_args(Split)))
