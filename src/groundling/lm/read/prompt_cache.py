"""Prompts that grow from call to call, of which only what is new is read: an agent's episodes while it acts.

Keys and values of each prompt are kept in a *slot*. The prompts of a call go through the body as one row without
padding, each with its new tokens and its candidates. Attention alone knows them apart (`kv_cache`): on a CPU it is
computed prompt by prompt; on an accelerator, which takes as long for one as for many, of those of like length at once,
padded. Candidates are written behind the prompt's end and forgotten with the next call.

It holds for weights that stay as they are, without gradients; memory is that of the longest prompt so far, for as many
prompts as one call has had.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groundling.lm.backbone import Backbone
from groundling.lm.read.kv_cache import PaddedCache, Part, PerSequenceCache
from groundling.lm.read.packing import ScoringQuestion, Tokens
from groundling.lm.read.reader import RowStates
from groundling.lm.read.transcript import Attend, AttentionBy, layouts_of


@dataclass(eq=False)
class _Slot:
    """A place for one prompt."""

    number: int
    text: list[int] = field(default_factory=list)
    """What its keys and values are of."""
    used: int = 0
    """The last call that did."""

    def alike(self, prompt: Tokens) -> int:
        """How many of a prompt's tokens need not be read; its last one always is."""
        return min(_num_alike(self.text, prompt), len(prompt) - 1)


def attends_together(device: torch.device) -> bool:
    """Whether the attention of several prompts is computed at once."""
    return device.type != "cpu"


def _num_alike(text: list[int], prompt: Tokens) -> int:
    """How many tokens both begin with, by halving: slices are compared faster than their tokens one by one."""
    least, most = 0, min(len(text), len(prompt))
    while least < most:
        middle = (least + most + 1) // 2
        if text[:middle] == list(prompt[:middle]):
            least = middle
        else:
            most = middle - 1
    return least


class PromptCache:
    """Answers questions, and keeps what was read of their prompts for those that go on from them.

    Args:
        backbone: Of a causal model.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._slots: list[_Slot] = []
        self._kept = PaddedCache() if attends_together(backbone.device) else PerSequenceCache()
        self._calls = 0

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return self._kept.num_bytes

    @torch.no_grad()
    def answers(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Final hidden states of each question's rows; where a prompt goes on from a kept one, the rest is read."""
        self._calls += 1
        layouts = layouts_of(questions)
        slots = self._slots_for([question.prompt for question in questions])
        parts = [
            Part.of(slot.number, slot.alike(question.prompt), question.prompt, layout)
            for slot, question, layout in zip(slots, questions, layouts, strict=True)
        ]
        for slot in slots:
            slot.text = []  # until it is read
        hidden: dict[int, Tensor] = {}
        for group in self._kept.groups(parts):
            hidden.update(zip(group, self._read([parts[index] for index in group]), strict=True))
        for slot, question in zip(slots, questions, strict=True):
            slot.text = list(question.prompt)
        return [RowStates(hidden[index][part.new - 1 :], part.layout.targets) for index, part in enumerate(parts)]

    def _read(self, parts: Sequence[Part]) -> list[Tensor]:
        """Final hidden states (tokens, hidden) of each part, all in one row."""
        device = self._backbone.device
        tokens, positions = torch.tensor(
            [
                [token for part in parts for token in part.tokens],
                [place for part in parts for place in part.positions],
            ],
            device=device,
        )
        nothing = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)  # which bodies pass on as it is
        with AttentionBy(self._attention_of(parts)):
            hidden = self._backbone.read(tokens[None], nothing, positions[None])[0]  # (length, hidden)
        return list(hidden.split([len(part.tokens) for part in parts]))

    def _attention_of(self, parts: Sequence[Part]) -> Attend:
        """Layer by layer the attention of the parts' rows, which come one after the other, to what is kept."""
        config = self._backbone.model.config.get_text_config()
        num_keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        attention = self._kept.attention(parts, len(self._slots), self._backbone.device)
        layers = itertools.count()

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
            # Bodies repeat a key for each query head that shares it; it is kept once.
            new = key[:, :: key.shape[1] // num_keys], value[:, :: value.shape[1] // num_keys]
            return attention(next(layers), query, new, scale)

        return attend

    def _slots_for(self, prompts: Sequence[Tokens]) -> list[_Slot]:
        """A slot for each prompt: that of the text it goes on from, else one that begins most like it."""
        while len(self._slots) < len(prompts):
            self._slots.append(_Slot(len(self._slots)))
        slots: dict[int, _Slot] = {}
        free = list(self._slots)
        for index, prompt in enumerate(prompts):
            # The prompts of a call usually come in the order of the last one.
            likely = self._slots[index]
            candidates = [likely, *(slot for slot in free if slot is not likely)] if likely in free else free
            for slot in candidates:
                if slot.text and slot.text == list(prompt[: len(slot.text)]):
                    slots[index] = slot
                    free.remove(slot)
                    break
        for index, prompt in enumerate(prompts):
            if index not in slots:  # of equals the one that was not used for longest
                slots[index] = max(free, key=lambda slot: (_num_alike(slot.text, prompt), -slot.used))
                free.remove(slots[index])
            slots[index].used = self._calls
        return [slots[index] for index in range(len(prompts))]
