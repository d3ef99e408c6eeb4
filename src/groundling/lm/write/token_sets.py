"""Which tokens filters and masks left for each token of a text, kept in little memory until it has been learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_IN_BITS = -1
"""The count of a set that is kept as bits."""


@dataclass(frozen=True)
class TokenSets:
    """Of each token of a text the set that it was drawn from: a list of ids, or bits where those take less.

    A set takes 4 bytes a token of it, and at most an eighth of a byte a token of the vocabulary: 6 KiB of GPT-2's.
    """

    counts: Tensor
    """int64 (num_tokens,): how many of ``ids`` belong to each token; -1 where the next row of ``bits`` does."""
    ids: Tensor
    """int32 (total,): tokens."""
    bits: Tensor
    """uint8 (sets kept as bits, vocabulary / 8 rounded up): the lowest bit of a byte comes first."""


def allowed_tokens(sets: Sequence[TokenSets], vocabulary: int, device: torch.device) -> Tensor:
    """Bool (tokens of all texts, vocabulary) on ``device``: what each token was drawn from."""
    counts = torch.cat([of_text.counts for of_text in sets])
    allowed = torch.zeros(len(counts), vocabulary, dtype=torch.bool, device=device)
    rows = torch.arange(len(counts)).repeat_interleave(counts.clamp(min=0))
    allowed[rows.to(device), torch.cat([of_text.ids for of_text in sets]).long().to(device)] = True
    in_bits = (counts == _IN_BITS).nonzero()[:, 0]
    if len(in_bits):
        bits = torch.cat([of_text.bits for of_text in sets]).to(device)
        allowed[in_bits.to(device)] = _unpacked(bits)[:, :vocabulary]
    return allowed


class SetKeeper:
    """Takes the sets of a batch of texts step by step, and puts them together by text."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        self._waiting: list[tuple[int, Tensor, Tensor]] = []
        self._listed: list[tuple[int, Tensor, Tensor]] = []  # a step; of each id its text, and the id
        self._in_bits: list[tuple[int, Tensor, Tensor]] = []  # a step; of each set its text, and its bits

    def add(self, step: int, rows: Tensor, left: Tensor) -> None:
        """What was left at a step for the texts ``rows`` (rows,): bool (rows, vocabulary), none where one has ended."""
        self._waiting.append((step, rows, left))

    def bring(self) -> None:
        """Bring what is waiting to the host, all of it by few copies."""
        if not self._waiting:
            return
        steps, of_rows, parts = zip(*self._waiting, strict=True)
        self._waiting = []
        left, ends = torch.cat(parts), torch.tensor([len(rows) for rows in of_rows]).cumsum(0)
        rows = torch.cat(of_rows).cpu()
        where, ids = left.nonzero().T
        in_bits = 4 * len(where) > left.numel() // 8
        if in_bits:
            alive = left.any(1).nonzero()[:, 0]
            where, kept = alive.cpu(), _packed(left[alive]).cpu()
        else:
            where, kept = where.cpu(), ids.int().cpu()
        cuts = torch.searchsorted(where, ends)[:-1].tolist()  # the rows of a step come before the next one's
        pieces = zip(steps, rows[where].tensor_split(cuts), kept.tensor_split(cuts), strict=True)
        (self._in_bits if in_bits else self._listed).extend(pieces)

    def sets(self, lengths: Tensor) -> list[TokenSets] | None:
        """Of each text, which has so many tokens, int64 (num_texts,); None where nothing was ever added."""
        self.bring()
        if not self._listed and not self._in_bits:
            return None
        num_steps = 1 + max(step for step, _, _ in (*self._listed, *self._in_bits))
        counts = torch.zeros(self.num_texts, num_steps, dtype=torch.long)
        for step, texts, _ in self._listed:
            counts[:, step] += torch.bincount(texts, minlength=self.num_texts)
        for step, texts, _ in self._in_bits:
            counts[texts, step] = _IN_BITS
        ids = _by_text(self._listed, counts.clamp(min=0).sum(1), torch.zeros(0, dtype=torch.int32))
        bits = _by_text(self._in_bits, (counts == _IN_BITS).sum(1), torch.zeros(0, 0, dtype=torch.uint8))
        return [
            TokenSets(counts[text, :length].clone(), ids[text], bits[text])
            for text, length in enumerate(lengths.tolist())
        ]


def _by_text(pieces: Sequence[tuple[int, Tensor, Tensor]], counts: Tensor, nothing: Tensor) -> list[Tensor]:
    """What was kept of each text, which has so many rows, in the order of the steps; with memory of its own, since a
    view that goes to another process takes all that it is a view of.
    """
    if not pieces:
        return [nothing] * len(counts)
    order = torch.cat([texts for _, texts, _ in pieces]).argsort(stable=True)
    kept = torch.cat([kept for _, _, kept in pieces])[order]
    return [part.clone() for part in kept.split(counts.tolist())]


def _packed(left: Tensor) -> Tensor:
    """Bool (rows, vocabulary) as uint8 (rows, vocabulary / 8 rounded up)."""
    bytes_of = F.pad(left, (0, -left.shape[1] % 8)).unflatten(1, (-1, 8))
    return (bytes_of * _places(left.device)).sum(-1, dtype=torch.uint8)


def _unpacked(bits: Tensor) -> Tensor:
    """The bits (rows, bytes) as bool (rows, 8 x bytes)."""
    return (bits[:, :, None] & _places(bits.device)).bool().flatten(1)


def _places(device: torch.device) -> Tensor:
    return 2 ** torch.arange(8, dtype=torch.uint8, device=device)
