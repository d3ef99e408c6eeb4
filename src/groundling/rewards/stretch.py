"""What a world hands over to be rewarded: what its envs paid, what was to be read, what was written."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from groundling.judges.preferences.segments import caption_ids
from groundling.judges.preferences.texts import in_context
from groundling.metrics.metric import Meta


@dataclass(frozen=True)
class Captions:
    """What was to be read at ``n`` steps of a stretch, in the order of its steps and, within a step, of its envs."""

    read: Callable[[Sequence[int]], Sequence[str]]
    """Gives the texts at these places of the ``n``."""
    goals: Sequence[str]
    """``n``: what was wanted; of written texts the prompts."""
    ids: Tensor
    """int64 ``(n,)``: equal texts have equal ids, others others."""
    counts: Tensor
    """float32 ``(n,)``: how often the text has come up in its episode, this time included; at least 1."""
    places: Tensor | None = None
    """int64 ``(n,)``: ``step * num_envs + env`` of each; None: every step has one."""
    contexts: Sequence[str] | None = None
    """``n``: what each text begins with, on lines of its own, and a judge of two texts is told once; None: nothing."""


@dataclass(frozen=True)
class Texts:
    """What was written; one entry for each column of the stretch, whose steps are its tokens."""

    prompts: Sequence[str]
    so_far: Sequence[Sequence[str]]
    """Of each text, what stood there after each of its tokens; the last is the whole."""
    references: Sequence[Sequence[str]]
    meta: Meta
    tokens: Sequence[Sequence[int]] = ()
    """Ids of each text's tokens; empty where they are unknown."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of steps, as far as rewards look at it. What its world does not have is None."""

    shape: tuple[int, int]
    """``(num_steps, num_envs)``."""
    env: Tensor | None = None
    """float32 ``(num_steps, num_envs)``: what the envs paid."""
    captions: Captions | None = None
    """Of text envs the descriptions that a step led to, a line each; of NetHack the message at which its action was
    chosen, as in Motif; of written texts the whole text, at its last token."""
    judged: Captions | None = None
    """What judges and reward models read instead, where that is another text, as in pairs that were collected for them:
    of text envs the goal, what was seen and what was done; of written texts the prompt and the text."""
    texts: Texts | None = None

    @classmethod
    def of_texts(cls, texts: Texts) -> Self:
        """Written texts: ``(longest, num_texts)``, each with its whole as the caption of its last token."""
        lengths = torch.tensor([len(written) for written in texts.so_far])
        wholes, columns = [written[-1] for written in texts.so_far], torch.arange(len(lengths))
        places = (lengths - 1) * len(lengths) + columns

        def captions(read: Sequence[str], contexts: Sequence[str] | None = None) -> Captions:
            ids, counts = torch.from_numpy(caption_ids(read)), torch.ones(len(read))
            return Captions(lambda rows: [read[row] for row in rows], texts.prompts, ids, counts, places, contexts)

        in_contexts = [in_context(prompt, whole) for prompt, whole in zip(texts.prompts, wholes, strict=True)]
        shape = (int(lengths.max()), len(lengths))
        judged = captions(in_contexts, texts.prompts)
        return cls(shape, captions=captions(wholes), judged=judged, texts=texts)

    def spread(self, captions: Captions, values: Tensor) -> Tensor:
        """``(num_steps, num_envs)`` with ``values`` ``(n,)`` where the captions are, and 0 elsewhere."""
        if captions.places is None:
            return values.view(self.shape)
        spread = torch.zeros(self.shape).flatten()
        spread[captions.places] = values
        return spread.view(self.shape)


class EpisodeCounts:
    """How often each caption has come up in the present episode of each env.

    Args:
        num_envs: How many envs.
    """

    def __init__(self, num_envs: int) -> None:
        self._seen: list[Counter[int]] = [Counter() for _ in range(num_envs)]

    def add(self, env: int, id: int) -> int:
        """How often the caption ``id`` has come up with this time."""
        self._seen[env][id] += 1
        return self._seen[env][id]

    def end(self, envs: Iterable[int]) -> None:
        """The episodes of ``envs`` are over."""
        for env in envs:
            self._seen[env].clear()

    def state_dict(self) -> list[dict[str, int]]:
        """Of each env the counts by id, as JSON holds them."""
        return [{str(id): count for id, count in seen.items()} for seen in self._seen]

    def load_state_dict(self, states: Sequence[Mapping[str, int]]) -> None:
        """Take up what `state_dict` gave."""
        self._seen = [Counter({int(id): count for id, count in state.items()}) for state in states]
