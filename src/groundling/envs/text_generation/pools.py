"""Samples for text generation, and the pools that contain them."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal, Self

import numpy as np

from groundling.errors import ConfigError, RunError, warn_caller
from groundling.registry import Registry

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Sample:
    """A prompt and its references."""

    id: str  # Unique within the pool and split
    prompt: str  # Text that the language model reads
    references: tuple[str, ...] = ()  # Good completions, for metrics and rewards that need them; may be empty
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Additional data for metrics and rewards, such as concepts, a table or an intent."""
    earlier: tuple[tuple[str, str], ...] = ()
    """Earlier turns of a conversation as (user message, answer) pairs, for the chat template (``world.chat=true``)."""
    system: str | None = None  # System prompt of the conversation; if None, the run's system prompt is used
    data: tuple[str, ...] = ()
    """The parts of the prompt that were taken from a dataset, in order. Control tokens in them are encoded as plain
    text. In the rest of the prompt, which is defined by the pool's settings, they remain control tokens."""
    rejected: tuple[str, ...] = ()  # Bad completions, or completions to which the references are preferred

    @classmethod
    def of_messages(cls, id: str, messages: Sequence[Mapping[str, str]], **more: Any) -> Self:
        """Create a sample from a conversation in the format of chat APIs and Transformers' chat templates.

        Messages are ``{"role": …, "content": …}``: an optional system prompt, then alternating user and assistant
        messages. The prompt is the last user message; an answer after it is a reference. ``more`` sets other fields.
        """
        references = more.pop("references", ())
        if not all(isinstance(one, Mapping) and isinstance(one.get("content"), str) for one in messages):
            raise ConfigError(f"sample {id}: expected messages {{role: …, content: TEXT}}, got {messages!r:.80}")
        roles = [message.get("role") for message in messages]
        words = [message["content"] for message in messages]
        system = None
        if roles[:1] == ["system"]:
            system, roles = words.pop(0), roles[1:]
        if not roles or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2):
            raise ConfigError(
                f"sample {id}: expected alternating user and assistant messages, optionally after system, got {roles}"
            )
        if len(roles) % 2 == 0:
            references = (words.pop(), *references)
        earlier = tuple(zip(words[:-1:2], words[1:-1:2], strict=True))
        return cls(id, words[-1], tuple(references), earlier=earlier, system=system, **more)

    def __post_init__(self) -> None:
        if not all(isinstance(turn, tuple) and len(turn) == 2 for turn in self.earlier):
            raise ConfigError(
                f"sample {self.id}: earlier must be pairs of a user message and an answer, got {self.earlier!r:.80}"
            )
        if not isinstance(self.references, tuple | list):
            raise ConfigError(
                f"sample {self.id}: references must be a tuple of strings, such as ('on it',), got "
                f"{self.references!r:.80}"
            )
        system = () if self.system is None else (self.system,)
        for text in (self.prompt, *self.references, *self.rejected, *chain(*self.earlier), *system):
            if not isinstance(text, str):
                raise ConfigError(f"sample {self.id}: prompt and references must be strings, got {text!r:.80}")
            try:
                text.encode()
            except UnicodeEncodeError:  # JSON can contain lone surrogates, which no tokenizer accepts
                raise ConfigError(
                    f"sample {self.id}: {text!r:.80} contains half a surrogate pair, such as \\ud83d: remove it"
                ) from None


class Pool(ABC):
    """A source of samples. Implement `prepare`, and register the class with `pools.register("its-id")`."""

    has_splits: ClassVar[bool] = True  # False if all splits have the same samples by design; suppresses a warning
    has_preferences: ClassVar[bool] = False  # True if samples have `Sample.rejected` texts

    @abstractmethod
    def prepare(self, split: Split) -> Sequence[Sample]:
        """Return all samples of a split, in a fixed order.

        Raises:
            GroundlingError: The data is unavailable, or contains no samples.
        """


pools: Registry[Pool] = Registry("pool")


class SampleOrder:
    """An endless sequence of a split's samples; the k-th sample depends only on the seed and k. With several
    processes, each draws the whole batch and uses its share, so the order is the same as with one process.

    Args:
        replacement: True to draw samples uniformly and independently, as in RL4LMs; False for shuffled epochs.
    """

    def __init__(self, samples: Sequence[Sample], seed: int, replacement: bool = True) -> None:
        if not len(samples):
            raise ConfigError("there are no samples to draw from")
        self.samples = samples
        self.seed = seed
        self.replacement = replacement
        self.drawn = 0
        self._epoch, self._shuffled = -1, np.zeros(0, np.int64)

    def draw(self, count: int) -> list[Sample]:
        first, self.drawn = self.drawn, self.drawn + count
        return [self.samples[self._index(k)] for k in range(first, self.drawn)]

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "drawn": self.drawn, "num_samples": len(self.samples), "sha256": self._fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position from a `state_dict`; raise `RunError` if the number of samples has changed."""
        if state["num_samples"] != len(self.samples):
            raise RunError(
                f"the samples have changed: there were {state['num_samples']}, now there are {len(self.samples)}; "
                "restore the data that the run started with, or start a new run"
            )
        if state.get("sha256", self._fingerprint) != self._fingerprint:  # older checkpoints lack it
            warn_caller(  # not an error, since a row that made the run fail may have been corrected
                f"the {len(self.samples)} samples or their order have changed since the checkpoint; continuing with "
                "the new samples"
            )
        self.seed, self.drawn, self._epoch = state["seed"], state["drawn"], -1

    @cached_property
    def _fingerprint(self) -> str:
        """Hash of the samples' ids, prompts, references, rejected texts, conversations and meta, in order."""
        sha256 = hashlib.sha256()
        for sample in self.samples:
            system = [] if sample.system is None else [sample.system]
            texts = (*sample.references, *sample.rejected, *chain(*sample.earlier), *system)
            meta = json.dumps(dict(sample.meta), default=lambda value: type(value).__name__, skipkeys=True)
            for part in (sample.id, sample.prompt, *texts, meta):
                encoded = str(part).encode("utf-8", "surrogatepass")
                sha256.update(len(encoded).to_bytes(8, "big") + encoded)
            sha256.update(b"\xff" * 8)  # separates samples; not a valid length
        return sha256.hexdigest()

    def _index(self, k: int) -> int:
        if self.replacement:
            word = int(np.random.SeedSequence((self.seed, k)).generate_state(1, np.uint64)[0])
            return word * len(self.samples) >> 64  # uniform up to num_samples / 2⁶⁴
        epoch, place = divmod(k, len(self.samples))
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = np.random.default_rng((self.seed, epoch)).permutation(len(self.samples))
        return int(self._shuffled[place])
