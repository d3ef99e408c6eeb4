"""Sets of tokens that filters and masks allowed for each token of a text, in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_AS_BITS = -1
"""Count of a set that is kept as bits."""


@dataclass(frozen=True)
class TokenSets:
    """The set that each token of a text was drawn from, as a list of ids, or as bits if these take less memory.

    A set takes 4 bytes for each of its tokens, and at most a bit for each token of the vocabulary: 6 KiB for GPT-2.

    `counts`: int64 (num_tokens,), the number of `ids` of each token; -1: the next row of `bits`.
    `ids`: int32 (total,).
    `bits`: uint8 (sets kept as bits, vocabulary / 8 rounded up), the lowest bit of a byte first.
    """

    counts: Tensor
    ids: Tensor
    bits: Tensor


def allowed_tokens(sets: Sequence[TokenSets], vocabulary: int, device: torch.device) -> Tensor:
    """Return bool (tokens of all texts, vocabulary) on ``device``: the tokens that were allowed at each token."""
    counts = torch.cat([of_text.counts for of_text in sets])
    allowed = torch.zeros(len(counts), vocabulary, dtype=torch.bool, device=device)
    rows = torch.arange(len(counts)).repeat_interleave(counts.clamp(min=0))
    allowed[rows.to(device), torch.cat([of_text.ids for of_text in sets]).long().to(device)] = True
    as_bits = (counts == _AS_BITS).nonzero()[:, 0]
    if len(as_bits):
        bits = torch.cat([of_text.bits for of_text in sets]).to(device)
        allowed[as_bits.to(device)] = _unpacked(bits)[:, :vocabulary]
    return allowed


class SetKeeper:
    """Collects the sets of a batch of texts step by step, and returns them by text."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        self._waiting: list[tuple[int, Tensor, Tensor]] = []
        # each: a step, the texts of its ids or sets, and these
        self._ids: list[tuple[int, Tensor, Tensor]] = []
        self._bits: list[tuple[int, Tensor, Tensor]] = []

    def add(self, step: int, rows: Tensor, allowed: Tensor) -> None:
        """Add the sets of a step for the texts ``rows`` (rows,): bool (rows, vocabulary), empty after a text's end."""
        self._waiting.append((step, rows, allowed))

    def bring(self) -> None:
        """Copy all sets that were added to the host at once."""
        if not self._waiting:
            return
        steps, of_rows, parts = zip(*self._waiting, strict=True)
        self._waiting = []
        allowed, ends = torch.cat(parts), torch.tensor([len(rows) for rows in of_rows]).cumsum(0)
        rows = torch.cat(of_rows).cpu()
        places, ids = allowed.nonzero().T
        as_bits = 4 * len(places) > allowed.numel() // 8
        if as_bits:
            alive = allowed.any(1).nonzero()[:, 0]
            places, kept = alive.cpu(), _packed(allowed[alive]).cpu()
        else:
            places, kept = places.cpu(), ids.int().cpu()
        cuts = torch.searchsorted(places, ends)[:-1].tolist()  # step by step
        pieces = zip(steps, rows[places].tensor_split(cuts), kept.tensor_split(cuts), strict=True)
        (self._bits if as_bits else self._ids).extend(pieces)

    def sets(self, lengths: Tensor) -> list[TokenSets] | None:
        """Return the sets of each text, of ``lengths`` int64 (num_texts,) tokens; None if none was ever added."""
        self.bring()
        if not self._ids and not self._bits:
            return None
        num_steps = 1 + max(step for step, _, _ in (*self._ids, *self._bits))
        counts = torch.zeros(self.num_texts, num_steps, dtype=torch.long)
        for step, texts, _ in self._ids:
            counts[:, step] += torch.bincount(texts, minlength=self.num_texts)
        for step, texts, _ in self._bits:
            counts[texts, step] = _AS_BITS
        ids = _by_text(self._ids, counts.clamp(min=0).sum(1), torch.zeros(0, dtype=torch.int32))
        bits = _by_text(self._bits, (counts == _AS_BITS).sum(1), torch.zeros(0, 0, dtype=torch.uint8))
        return [
            TokenSets(counts[text, :length].clone(), ids[text], bits[text])
            for text, length in enumerate(lengths.tolist())
        ]


def _by_text(pieces: Sequence[tuple[int, Tensor, Tensor]], counts: Tensor, empty: Tensor) -> list[Tensor]:
    """Return each text's rows, step by step, in memory of its own: pickling a view copies all that it views."""
    if not pieces:
        return [empty] * len(counts)
    order = torch.cat([texts for _, texts, _ in pieces]).argsort(stable=True)
    kept = torch.cat([kept for _, _, kept in pieces])[order]
    return [part.clone() for part in kept.split(counts.tolist())]


def _packed(allowed: Tensor) -> Tensor:
    """Pack bool (rows, vocabulary) into uint8 (rows, vocabulary / 8 rounded up)."""
    octets = F.pad(allowed, (0, -allowed.shape[1] % 8)).unflatten(1, (-1, 8))
    return (octets * _bit_values(allowed.device)).sum(-1, dtype=torch.uint8)


def _unpacked(bits: Tensor) -> Tensor:
    """Unpack uint8 (rows, bytes) into bool (rows, 8 x bytes)."""
    return (bits[:, :, None] & _bit_values(bits.device)).bool().flatten(1)


def _bit_values(device: torch.device) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)
