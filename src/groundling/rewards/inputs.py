"""Data that a world passes to the parts of a reward: env rewards, captions, generated texts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from groundling.judges.preferences.segments import caption_ids
from groundling.judges.preferences.texts import in_context
from groundling.metrics.scorer import Meta


@dataclass(frozen=True)
class Captions:
    """Captions of ``n`` steps, in the order of steps and, within a step, of envs."""

    read: Callable[[Sequence[int]], Sequence[str]]  # Returns the texts at some of the ``n`` places
    goals: Sequence[str]  # ``n`` goals; for generated texts the prompts
    ids: Tensor  # int64 ``(n,)``: equal only for equal texts
    counts: Tensor  # float32 ``(n,)``: number of occurrences of the text in its episode so far, including this one
    places: Tensor | None = None  # int64 ``(n,)``: ``step * num_envs + env`` of each; None: every step has one
    contexts: Sequence[str] | None = None  # ``n`` first lines of the texts, which a judge of two texts reads once


@dataclass(frozen=True)
class GeneratedTexts:
    """Generated texts; one entry for each column of `RewardInputs`, whose steps are its tokens."""

    prompts: Sequence[str]
    so_far: Sequence[Sequence[str]]  # For each text, the text after each of its tokens; the last is the whole
    references: Sequence[Sequence[str]]
    meta: Meta
    tokens: Sequence[Sequence[int]] = ()  # Ids of each text's tokens; empty if they are unknown


@dataclass(frozen=True)
class RewardInputs:
    """Steps to reward; None for inputs that their world lacks."""

    shape: tuple[int, int]  # ``(num_steps, num_envs)``
    env: Tensor | None = None  # float32 ``(num_steps, num_envs)``: rewards of the envs
    captions: Captions | None = None
    """In text envs the descriptions after a step, a line each; in NetHack the message at which an action was chosen,
    as in Motif; for generated texts the whole text, at its last token."""
    judged: Captions | None = None
    """Other captions for judges and reward models, as in the pairs collected for them: in text envs the goal, the
    descriptions before the action, and the action; for generated texts prompt and text."""
    texts: GeneratedTexts | None = None

    @classmethod
    def of_texts(cls, texts: GeneratedTexts) -> Self:
        """Generated texts, ``(longest, num_texts)``; the caption of the last token is the whole text."""
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
        """Put ``values`` ``(n,)`` at the places of the captions: ``(num_steps, num_envs)``, 0 elsewhere."""
        if captions.places is None:
            return values.view(self.shape)
        spread = torch.zeros(self.shape).flatten()
        spread[captions.places] = values
        return spread.view(self.shape)


class EpisodeCounts:
    """Number of occurrences of each caption in the current episode of each of ``num_envs`` envs."""

    def __init__(self, num_envs: int) -> None:
        self._seen: list[Counter[int]] = [Counter() for _ in range(num_envs)]

    def add(self, env: int, id: int) -> int:
        """Count the caption ``id``, and return its number of occurrences."""
        self._seen[env][id] += 1
        return self._seen[env][id]

    def end(self, envs: Iterable[int]) -> None:
        """Reset the counts of ``envs``, whose episodes ended."""
        for env in envs:
            self._seen[env].clear()

    def state_dict(self) -> list[dict[str, int]]:
        """Counts by id for each env; serialisable as JSON."""
        return [{str(id): count for id, count in seen.items()} for seen in self._seen]

    def load_state_dict(self, states: Sequence[Mapping[str, int]]) -> None:
        self._seen = [Counter({int(id): count for id, count in state.items()}) for state in states]
