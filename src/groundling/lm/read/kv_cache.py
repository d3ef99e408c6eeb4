"""Keys and values of prompts that grow, and attention to them: prompt by prompt, or of several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.lm.read.packing import Layout, Tokens
from groundling.lm.read.reader import TOKENS_AT_ONCE
from groundling.lm.read.transcript import passes

_LEAST_CAPACITY = 256
"""Tokens of a slot, at least."""
_TOKENS_AT_ONCE = 4096
"""New tokens that share a row on a CPU, unless one prompt has more."""
_PAIRS_AT_ONCE = 2**24
"""Pairs of a new token and one that it may look at, of all prompts of a padded pass; their mask takes as many bytes."""

Attention = Callable[[int, Tensor, tuple[Tensor, Tensor], float | None], Tensor]
"""From the layer, the queries (1, heads, length, size), what is new of keys and values, likewise, and the scale."""
_Among = Callable[[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor], float | None], Tensor]
"""The same from what a layer keeps of all slots, in the place of its number."""


@dataclass(frozen=True)
class Part:
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
    def of(cls, slot: int, start: int, prompt: Tokens, layout: Layout) -> Part:
        """Of a prompt whose first ``start`` tokens a slot keeps, and of its candidates."""
        return cls(
            slot,
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


class PerSequenceCache:
    """Keys and values slot by slot, each with room for its own prompt; attention to them part by part."""

    def __init__(self) -> None:
        # By layer and slot, (heads, capacity, size) each.
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        return sum(_num_bytes(pair) for pair in self._kept.values())

    @staticmethod
    def groups(parts: Sequence[Part]) -> list[list[int]]:
        """Which go through the body together."""
        return passes(range(len(parts)), [len(part.tokens) for part in parts], _TOKENS_AT_ONCE)

    def attention(self, parts: Sequence[Part], slots: int, device: torch.device) -> Attention:
        """That of these parts, whose rows come one after the other."""
        masks = _additive_masks(parts, device)

        def attend(layer: int, query: Tensor, new: tuple[Tensor, Tensor], scale: float | None) -> Tensor:
            seen, first = [], 0
            for part, mask in zip(parts, masks, strict=True):
                rows, place = slice(first, first + len(part.tokens)), (layer, part.slot)
                kept = self._kept.get(place) or (new[0].new_empty(0, 0, 0),) * 2
                if part.end > kept[0].shape[1]:
                    room = (new[0].shape[1], _capacity(part.end), new[0].shape[3])
                    self._kept[place] = kept = _grown(kept, room)
                added = new[0][0, :, rows], new[1][0, :, rows]
                seen += _attention_of_one(part, mask, query[:, :, rows], added, kept, scale)
                first = rows.stop
            return torch.cat(seen, dim=2)

        return attend


class PaddedCache:
    """Keys and values of all slots in one tensor, each with room for the longest prompt; attention to them at once."""

    def __init__(self) -> None:
        # By layer, (slots, heads, capacity, size) each.
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_bytes(self) -> int:
        return sum(_num_bytes(pair) for pair in self._kept.values())

    @staticmethod
    def groups(parts: Sequence[Part]) -> list[list[int]]:
        """Which go through the body together: of like length, so that at most a third of a group is padding."""
        groups: list[list[int]] = []
        width = end = filled = 0
        for index in sorted(range(len(parts)), key=lambda i: -len(parts[i].tokens)):
            length, size = len(parts[index].tokens), len(groups[-1]) + 1 if groups else 1
            end = max(end, parts[index].end)
            cells = width * size
            wide = cells > min(1.5 * (filled + length), TOKENS_AT_ONCE) or cells * end > _PAIRS_AT_ONCE
            if not groups or wide:
                groups.append([])
                width, end, filled = length, parts[index].end, 0
            groups[-1].append(index)
            filled += length
        return groups

    def attention(self, parts: Sequence[Part], slots: int, device: torch.device) -> Attention:
        """That of these parts, whose rows come one after the other."""
        ends = max(part.end for part in parts)
        together = _alone(parts[0], device) if len(parts) == 1 else _Padded.of(parts, device).attention

        def attend(layer: int, query: Tensor, new: tuple[Tensor, Tensor], scale: float | None) -> Tensor:
            kept = self._kept.get(layer) or (new[0].new_empty(0, 0, 0, 0),) * 2
            if slots > len(kept[0]) or ends > kept[0].shape[2]:
                capacity = _capacity(ends) if ends > kept[0].shape[2] else kept[0].shape[2]
                room = (max(slots, len(kept[0])), new[0].shape[1], capacity, new[0].shape[3])
                self._kept[layer] = kept = _grown(kept, room)
            return together(query, new, kept, scale)

        return attend


@dataclass(frozen=True)
class _Padded:
    """Parts as a batch of (parts, width) tokens."""

    width: int
    end: int
    active: Tensor
    """int64 (parts,): their slots."""
    slots: Tensor
    places: Tensor
    """int64 (tokens,): where each token is kept."""
    flat: Tensor
    """int64 (tokens,): where each token is in the flattened batch."""
    allowed: Tensor
    """Bool (parts, 1, width, end)."""

    @classmethod
    def of(cls, parts: Sequence[Part], device: torch.device) -> _Padded:
        width, end = max(len(part.tokens) for part in parts), max(part.end for part in parts)
        counts = torch.tensor([len(part.tokens) for part in parts])
        number = torch.arange(len(parts)).repeat_interleave(counts)
        row = torch.cat([torch.arange(count) for count in counts.tolist()])
        slots, starts = torch.tensor([[part.slot, part.start] for part in parts]).T
        # A prompt's tokens see themselves and all before, its candidates' the whole prompt, padding one token.
        ends = torch.ones(len(parts), width, dtype=torch.long)
        visible = []
        for place, part in enumerate(parts):
            ends[place, : part.new] = torch.arange(part.start + 1, part.start + part.new + 1)
            ends[place, part.new : len(part.tokens)] = part.start + part.new
            rows, columns = part.layout.visible[1:, 1:].nonzero().T
            visible.append(
                torch.stack([torch.full_like(rows, place), rows + part.new, columns + part.start + part.new])
            )
        allowed = torch.arange(end, device=device) < ends.to(device)[..., None]
        yes = torch.ones((), dtype=torch.bool, device=device)
        allowed.index_put_(tuple(torch.cat(visible, dim=1).to(device)), yes)
        of_tokens = torch.stack([slots[number], starts[number] + row, number * width + row]).to(device)
        slots_of, places, flat = of_tokens
        return cls(width, end, slots.to(device), slots_of, places, flat, allowed[:, None])

    def attention(
        self, query: Tensor, new: tuple[Tensor, Tensor], kept: tuple[Tensor, Tensor], scale: float | None
    ) -> Tensor:
        for all_kept, added in zip(kept, new, strict=True):
            all_kept[self.slots, :, self.places] = added[0].transpose(0, 1)
        asked = query.new_zeros(len(self.active) * self.width, query.shape[1], query.shape[3])
        asked = asked.index_copy(0, self.flat, query[0].transpose(0, 1))
        keys, values = (all_kept[:, :, : self.end].index_select(0, self.active) for all_kept in kept)
        seen = F.scaled_dot_product_attention(
            asked.unflatten(0, (-1, self.width)).transpose(1, 2),
            keys,
            values,
            attn_mask=self.allowed,
            scale=scale,
            enable_gqa=True,
        )  # (parts, heads, width, size)
        return seen.transpose(1, 2).flatten(0, 1).index_select(0, self.flat).transpose(0, 1)[None]


def _alone(part: Part, device: torch.device) -> _Among:
    """The same of a single part, of whose prompt no mask is laid out if it is read as a whole."""
    (mask,) = _additive_masks([part], device)

    def attention(
        query: Tensor, new: tuple[Tensor, Tensor], kept: tuple[Tensor, Tensor], scale: float | None
    ) -> Tensor:
        of_slot, added = (kept[0][part.slot], kept[1][part.slot]), (new[0][0], new[1][0])
        return torch.cat(_attention_of_one(part, mask, query, added, of_slot, scale), dim=2)

    return attention


def _attention_of_one(
    part: Part,
    mask: Tensor,
    query: Tensor,
    new: tuple[Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    scale: float | None,
) -> list[Tensor]:
    """Of a part's rows to what its slot keeps, where what is new is put.

    Args:
        part: Whose rows they are.
        mask: What is added to the products of its last rows: -inf where they do not look.
        query: (1, heads, rows, size).
        new: Keys and values of the rows, (key heads, rows, size).
        kept: The slot's, (key heads, capacity, size).
        scale: Of the products.

    Returns:
        (1, heads, some rows, size) each, in the order of the rows.
    """
    for all_kept, added in zip(kept, new, strict=True):
        all_kept[:, part.start : part.end] = added
    causal, seen = query.shape[2] - len(mask), []
    if causal:
        shared = query.shape[1] // len(new[0])
        keys, values = (added[None, :, :causal].repeat_interleave(shared, dim=1) for added in new)
        asked = query[:, :, :causal]
        seen.append(F.scaled_dot_product_attention(asked, keys, values, is_causal=True, scale=scale))
    if len(mask):
        keys, values = (all_kept[None, :, : part.end] for all_kept in kept)
        asked, added = query[:, :, causal:], mask.to(query.dtype)
        seen.append(F.scaled_dot_product_attention(asked, keys, values, attn_mask=added, scale=scale, enable_gqa=True))
    return seen


def _additive_masks(parts: Sequence[Part], device: torch.device) -> list[Tensor]:
    allowed = [part.mask() for part in parts]
    flat = torch.cat([mask.flatten() for mask in allowed]).to(device)  # by one copy
    added = torch.zeros(flat.shape, device=device).masked_fill_(~flat, -torch.inf)
    pieces = added.split([mask.numel() for mask in allowed])
    return [piece.view(mask.shape) for piece, mask in zip(pieces, allowed, strict=True)]


def _capacity(tokens: int) -> int:
    return max(_LEAST_CAPACITY, tokens * 3 // 2)


def _grown(kept: tuple[Tensor, Tensor], room: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Keys and values with more room behind what there is."""

    def grown(before: Tensor) -> Tensor:
        after = before.new_zeros(room)
        after[tuple(slice(size) for size in before.shape)] = before
        return after

    return grown(kept[0]), grown(kept[1])


def _num_bytes(pair: tuple[Tensor, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in pair)
