"""Prompts that grow from call to call, of which only what is new is read: an agent's episodes while it acts.

Keys and values of each prompt are kept in a *slot*. The prompts of a call go through the body as one row without
padding, each with its new tokens and its candidates. Attention alone knows them apart: on a CPU it is computed prompt
by prompt; on an accelerator, which takes as long for one as for all, of all at once, padded. Candidates are written
behind the prompt's end and forgotten with the next call.

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
from groundling.lm.transcript import Attend, AttentionBy, layouts_of, passes, tokens_at_once

_LEAST_CAPACITY = 256
"""Tokens of a slot, at least."""
_TOKENS_AT_ONCE = 4096
"""New tokens that share a row on a CPU, unless one prompt has more."""


@dataclass(eq=False)
class _Slot:
    """A place for one prompt."""

    number: int
    text: list[int] = field(default_factory=list)
    """What its keys and values are of."""
    used: int = 0
    """The last call that did."""


class _Memory:
    """Keys and values of all slots, layer by layer (slots, heads, capacity, size)."""

    def __init__(self) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for pair in self._layers for tensor in pair)

    def of(self, layer: int, new: Tensor, slots: int, tokens: int) -> tuple[Tensor, Tensor]:
        """A layer's, with room for so many slots and tokens; ``new`` (1, heads, any, size) is like what comes in."""
        if layer == len(self._layers):
            nothing = new.new_empty(0, new.shape[1], 0, new.shape[3])
            self._layers.append((nothing, nothing))
        keys, _ = self._layers[layer]
        capacity = keys.shape[2]
        if slots > len(keys) or tokens > capacity:
            if tokens > capacity:
                capacity = max(_LEAST_CAPACITY, tokens * 5 // 4)
            keys, values = (_grown(kept, max(slots, len(kept)), capacity) for kept in self._layers[layer])
            self._layers[layer] = keys, values
        return self._layers[layer]


def _grown(kept: Tensor, slots: int, capacity: int) -> Tensor:
    grown = kept.new_zeros(slots, kept.shape[1], capacity, kept.shape[3])
    grown[: len(kept), :, : kept.shape[2]] = kept
    return grown


@dataclass(frozen=True)
class _Part:
    """One prompt's share of a call's row."""

    slot: int
    start: int
    """So many of its tokens are kept already."""
    new: int
    """So many come now, before those of its candidates."""
    tokens: list[int]
    positions: list[int]
    layout: Layout

    @classmethod
    def of(cls, slot: _Slot, question: ScoringQuestion, layout: Layout) -> _Part:
        prompt = question.prompt
        start = min(_num_alike(slot.text, prompt), len(prompt) - 1)
        return cls(
            slot.number,
            start,
            len(prompt) - start,
            [*prompt[start:], *layout.tokens[1:]],
            [*range(start, len(prompt)), *(len(prompt) - 1 + depth for depth in layout.depths[1:])],
            layout,
        )

    @property
    def end(self) -> int:
        """How many tokens its slot then has, its candidates' included."""
        return self.start + len(self.tokens)

    def mask(self) -> Tensor:
        """Bool (rows, end): what its last rows see; those before them, of a prompt read as a whole, see all before."""
        rows, prompt = self.layout.num_rows - 1, self.start + self.new
        allowed = torch.ones(rows, self.end, dtype=torch.bool)
        allowed[:, prompt:] = self.layout.visible[1:, 1:]
        if self.start:
            causal = torch.ones(self.new, self.end, dtype=torch.bool).tril(self.start)
            allowed = torch.cat([causal, allowed])
        return allowed


class _OneByOne:
    """Attention of each part's rows to what its slot keeps, part by part."""

    def __init__(self, parts: Sequence[_Part], device: torch.device) -> None:
        self._parts = parts
        allowed = [part.mask() for part in parts]
        # To the device by one copy.
        flat = torch.cat([mask.flatten() for mask in allowed]).to(device)
        added = torch.zeros(flat.shape, device=device).masked_fill_(~flat, -torch.inf)
        pieces = added.split([mask.numel() for mask in allowed])
        self._masks = [piece.view(mask.shape) for piece, mask in zip(pieces, allowed, strict=True)]

    def __call__(
        self, query: Tensor, new: tuple[Tensor, Tensor], kept: tuple[Tensor, Tensor], scale: float | None
    ) -> Tensor:
        seen, first = [], 0
        for part, mask in zip(self._parts, self._masks, strict=True):
            rows = slice(first, first + len(part.tokens))
            for all_kept, one in zip(kept, new, strict=True):
                all_kept[part.slot, :, part.start : part.end] = one[0, :, rows]
            causal = slice(first, rows.stop - len(mask))
            if causal.stop > causal.start:
                shared = query.shape[1] // new[0].shape[1]
                keys, values = (one[:, :, causal].repeat_interleave(shared, dim=1) for one in new)
                seen.append(
                    F.scaled_dot_product_attention(
                        query[:, :, causal], keys, values, is_causal=True, scale=scale
                    )
                )
            if len(mask):
                keys, values = (one[part.slot, None, :, : part.end] for one in kept)
                asked = query[:, :, causal.stop : rows.stop]
                added = mask.to(asked.dtype)
                seen.append(
                    F.scaled_dot_product_attention(
                        asked, keys, values, attn_mask=added, scale=scale, enable_gqa=True
                    )
                )
            first = rows.stop
        return torch.cat(seen, dim=2)


class _Together:
    """The same of all parts at once, padded to the longest; of so few operations an accelerator is not waited for."""

    def __init__(self, parts: Sequence[_Part], device: torch.device) -> None:
        widths = [len(part.tokens) for part in parts]
        self._width, self._end = max(widths), max(part.end for part in parts)
        places = [
            (number, row, part.slot, part.start + row)
            for number, part in enumerate(parts)
            for row in range(len(part.tokens))
        ]
        seen = [
            (number, part.new + row, part.start + part.new + column)
            for number, part in enumerate(parts)
            for row, column in part.layout.visible[1:, 1:].nonzero().tolist()
        ]
        # A prompt's tokens see themselves and all before, its candidates' the whole prompt, padding one token.
        ends = torch.ones(len(parts), self._width, dtype=torch.long)
        for number, part in enumerate(parts):
            ends[number, : part.new] = torch.arange(part.start + 1, part.start + part.new + 1)
            ends[number, part.new : len(part.tokens)] = part.start + part.new
        of_part, row, self._slots, self._places = torch.tensor(places, device=device).T
        self._flat = of_part * self._width + row  # of each token in the padded batch
        self._active = torch.tensor([part.slot for part in parts], device=device)
        allowed = torch.arange(self._end, device=device) < ends.to(device)[..., None]
        if seen:
            yes = torch.ones((), dtype=torch.bool, device=device)
            allowed.index_put_(tuple(torch.tensor(seen, device=device).T), yes)
        self._allowed = allowed[:, None]  # (parts, 1, width, end)

    def __call__(
        self, query: Tensor, new: tuple[Tensor, Tensor], kept: tuple[Tensor, Tensor], scale: float | None
    ) -> Tensor:
        for all_kept, one in zip(kept, new, strict=True):
            all_kept[self._slots, :, self._places] = one[0].transpose(0, 1)
        heads, size = query.shape[1], query.shape[3]
        asked = query.new_zeros(len(self._active) * self._width, heads, size)
        asked = asked.index_copy(0, self._flat, query[0].transpose(0, 1))
        keys, values = (one[:, :, : self._end].index_select(0, self._active) for one in kept)
        seen = F.scaled_dot_product_attention(
            asked.unflatten(0, (-1, self._width)).transpose(1, 2),
            keys,
            values,
            attn_mask=self._allowed,
            scale=scale,
            enable_gqa=True,
        )  # (parts, heads, width, size)
        return seen.transpose(1, 2).flatten(0, 1).index_select(0, self._flat).transpose(0, 1)[None]


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


class KeptPrompts:
    """Answers questions, and keeps what was read of their prompts for those that go on from them.

    Args:
        backbone: Of a causal model.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._slots: list[_Slot] = []
        self._memory = _Memory()
        self._calls = 0

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return self._memory.num_bytes

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
        for slot in slots:
            slot.text = []  # until it is read
        hidden: list[Tensor] = []
        most = tokens_at_once(self._backbone.device, _TOKENS_AT_ONCE)
        for group in passes(parts, [len(part.tokens) for part in parts], most):
            hidden += self._read(group)
        for slot, question in zip(slots, questions, strict=True):
            slot.text = list(question.prompt)
        return [
            RowStates(states[part.new - 1 :], layout.targets)
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
        with AttentionBy(self._attention_of(parts)):
            hidden = self._backbone.read(tokens[None], nothing, positions[None])[0]  # (length, hidden)
        return list(hidden.split([len(part.tokens) for part in parts]))

    def _attention_of(self, parts: Sequence[_Part]) -> Attend:
        """Layer by layer the attention of the parts' rows, which come one after the other, to what is kept."""
        config = self._backbone.model.config.get_text_config()
        num_keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        device, end = self._backbone.device, max(part.end for part in parts)
        attention = (_Together if attends_together(device) else _OneByOne)(parts, device)
        layers = itertools.count()

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
            # Bodies repeat a key for each query head that shares it; it is kept once.
            new = key[:, :: key.shape[1] // num_keys], value[:, :: value.shape[1] // num_keys]
            kept = self._memory.of(next(layers), new[0], len(self._slots), end)
            return attention(query, new, kept, scale)

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
