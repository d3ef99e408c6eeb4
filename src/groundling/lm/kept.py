"""Prompts that grow from call to call, of which only what is new is read: an agent's episodes while it acts.

Keys and values of each prompt are kept in a *slot*, layer by layer. The prompts of a call go through the body as one
row without padding, each with its new tokens and its candidates; attention alone is computed prompt by prompt.
Candidates are written behind the prompt's end and forgotten with the next call.

It holds for weights that stay as they are, without gradients; memory is that of the longest prompt so far, for as many
prompts as one call has had.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.lm.backbone import Backbone
from groundling.lm.packing import Layout, ScoringQuestion, Tokens
from groundling.lm.reader import RowStates
from groundling.lm.transcript import Attend, AttentionBy, layouts_of, passes

_LEAST_CAPACITY = 256
"""Tokens of a slot, at least."""
_TOKENS_AT_ONCE = 4096
"""New tokens that share a row, unless one prompt has more."""


@dataclass(eq=False)
class _Slot:
    """What is kept of one prompt; ``keys`` and ``values`` layer by layer (1, heads, capacity, size)."""

    text: list[int] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    used: int = 0
    """The last call that did."""

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values (1, heads, more, size) behind the first ``start``; all up to their end."""
        end = start + keys.shape[2]
        for kept, new in ((self.keys, keys), (self.values, values)):
            if layer == len(kept):
                kept.append(new.new_empty(0))
            if kept[layer].numel() == 0 or kept[layer].shape[2] < end:
                room = list(new.shape)
                room[2] = max(_LEAST_CAPACITY, end * 3 // 2)
                grown = new.new_zeros(room)
                if kept[layer].numel():
                    grown[:, :, :start] = kept[layer][:, :, :start]
                kept[layer] = grown
            kept[layer][:, :, start:end] = new
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


@dataclass(frozen=True)
class _Part:
    """One prompt's share of a call's row."""

    slot: _Slot
    start: int
    """So many of its tokens are kept already."""
    tokens: list[int]
    positions: list[int]
    root: int
    """Which of its tokens is the prompt's last."""
    allowed: Tensor
    """Bool (rows, start + tokens): what the last rows see; those before them see all that comes before."""

    @classmethod
    def of(cls, slot: _Slot, question: ScoringQuestion, layout: Layout) -> _Part:
        prompt = question.prompt
        start = min(_num_alike(slot.text, prompt), len(prompt) - 1)
        new, rows = len(prompt) - start, layout.num_rows - 1
        allowed = torch.ones(rows, len(prompt) + rows, dtype=torch.bool)
        allowed[:, len(prompt) :] = layout.visible[1:, 1:]
        if start:  # of a prompt that is read as a whole, attention is plainly causal
            allowed = torch.cat([torch.ones(new, allowed.shape[1], dtype=torch.bool).tril(start), allowed])
        return cls(
            slot,
            start,
            [*prompt[start:], *layout.tokens[1:]],
            [*range(start, len(prompt)), *(len(prompt) - 1 + depth for depth in layout.depths[1:])],
            new - 1,
            allowed,
        )


def _attention_of(parts: Sequence[_Part], masks: Sequence[Tensor], num_keys: int) -> Attend:
    """Attention of each part's rows to what its slot keeps, layer by layer.

    Args:
        parts: Their rows come one after the other.
        masks: What is added to the products of each, on the device: -inf where it does not look.
        num_keys: How many heads have keys of their own.
    """
    layers = itertools.count()

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        seen, first, layer = [], 0, next(layers)
        for part, mask in zip(parts, masks, strict=True):
            rows = slice(first, first + len(part.tokens))
            # Bodies repeat a key for each query head that shares it; it is kept once.
            new = (one[:, :: one.shape[1] // num_keys, rows] for one in (key, value))
            keys, values = part.slot.write(layer, part.start, *new)
            causal = slice(first, rows.stop - len(mask))
            if causal.stop > causal.start:
                asked, keys_of, values_of = (one[:, :, causal] for one in (query, key, value))
                seen.append(
                    F.scaled_dot_product_attention(asked, keys_of, values_of, is_causal=True, scale=scale)
                )
            if len(mask):
                asked = query[:, :, causal.stop : rows.stop]
                added = mask.to(asked.dtype)
                seen.append(
                    F.scaled_dot_product_attention(asked, keys, values, added, scale=scale, enable_gqa=True)
                )
            first = rows.stop
        return torch.cat(seen, dim=2)

    return attend


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


class KeptPrompts:
    """Answers questions, and keeps what was read of their prompts for those that go on from them.

    Args:
        backbone: Of a causal model.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._slots: list[_Slot] = []
        self._calls = 0

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return sum(t.numel() * t.element_size() for slot in self._slots for t in (*slot.keys, *slot.values))

    @torch.no_grad()
    def answers(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Final hidden states of each question's rows; where a prompt goes on from a kept one, the rest is read."""
        self._calls += 1
        layouts = layouts_of(questions)
        slots = self._slots_for([question.prompt for question in questions])
        parts = [
            _Part.of(slot, question, layout)
            for slot, question, layout in zip(slots, questions, layouts, strict=True)
        ]
        for part in parts:
            part.slot.text = []  # until it is read
        hidden: list[Tensor] = []
        for group in passes(parts, [len(part.tokens) for part in parts], _TOKENS_AT_ONCE):
            hidden += self._read(group)
        for slot, question in zip(slots, questions, strict=True):
            slot.text = list(question.prompt)
        return [
            RowStates(states[part.root :], layout.targets)
            for states, part, layout in zip(hidden, parts, layouts, strict=True)
        ]

    def _read(self, parts: Sequence[_Part]) -> list[Tensor]:
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
        config = self._backbone.model.config.get_text_config()
        num_keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        # To the device by one copy.
        allowed = torch.cat([part.allowed.flatten() for part in parts]).to(device)
        added = torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, -torch.inf)
        pieces = added.split([part.allowed.numel() for part in parts])
        masks = [piece.view(part.allowed.shape) for piece, part in zip(pieces, parts, strict=True)]
        with AttentionBy(_attention_of(parts, masks, num_keys)):
            hidden = self._backbone.read(tokens[None], nothing, positions[None])[0]  # (length, hidden)
        return list(hidden.split([len(part.tokens) for part in parts]))

    def _slots_for(self, prompts: Sequence[Tokens]) -> list[_Slot]:
        """A slot for each prompt: that of the text it goes on from, else one that begins most like it."""
        while len(self._slots) < len(prompts):
            self._slots.append(_Slot())
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
