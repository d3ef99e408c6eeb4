"""Batches of texts of similar length, and tensors of padded batches."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

TOKENS_AT_ONCE = 32_768  # Prompt tokens of one pass, so that a long call does not hold all states at once


@dataclass(frozen=True)
class Batching:
    """Limits of a padded batch: its cells, its padding as a share of the filled cells, its pairs of cells."""

    max_tokens: int
    max_waste: float
    max_pairs: float

    @classmethod
    def for_device(cls, device: torch.device) -> Self:
        """Return limits: one prompt fills a CPU's cores; an accelerator needs more rows, loses less by padding."""
        # Attention of 2**19 pairs takes 16 MB in each layer of 8 heads. From 32 MB on, Linux releases such memory and
        # allocates it again each time, which doubles the time.
        return cls(4096, 0.03, 2**19) if device.type == "cpu" else cls(TOKENS_AT_ONCE, 0.25, float("inf"))

    def batches(self, lengths: Sequence[int], copies: int = 1, max_waste: float | None = None) -> list[list[int]]:
        """Return batches of texts within these limits, each text read ``copies`` times."""
        waste = self.max_waste if max_waste is None else max_waste
        return batches(lengths, self.max_tokens // copies, waste, self.max_pairs / copies)


def batches(
    lengths: Sequence[int], max_tokens: int, max_waste: float, max_pairs: float = float("inf")
) -> list[list[int]]:
    """Group indices of ``lengths`` so that padded batches contain little padding.

    Limits as in `Batching`: ``max_waste`` is a share of the filled cells, ``max_pairs`` counts pairs of cells of which
    one attends to the other. A longer text gets a batch of its own.
    """
    groups: list[list[int]] = []
    width = filled = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        cells = width * (len(groups[-1]) + 1 if groups else 1)
        too_large = cells > max_tokens or cells * width > max_pairs
        if not groups or too_large or cells - filled - length > max_waste * (filled + length):
            groups.append([])
            width, filled = length, 0
        groups[-1].append(index)
        filled += length
    return groups


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, filler: int = 0, left: bool = False
) -> tuple[Tensor, Tensor]:
    """Return token ids and 0/1 mask, int64 (batch, longest), padded on the right, or on the left."""
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    longest = int(lengths.max())
    places = torch.arange(longest)
    mask = places >= longest - lengths if left else places < lengths
    tokens = torch.full(mask.shape, filler)
    tokens[mask] = torch.tensor(list(itertools.chain.from_iterable(rows)), dtype=torch.long)
    return tokens.to(device), mask.long().to(device)


def padded_states(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return states (length, size) as a batch (batch, longest, size), and its 0/1 int64 mask (batch, longest)."""
    flat = torch.cat(list(sequences))
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    places = torch.arange(int(lengths.max()))  # (longest,)
    mask = places < lengths[:, None]  # (batch, longest)
    # One look-up: `pad_sequence` copies row by row, and its backward pass copies the whole batch for each row.
    rows = torch.where(mask, places + (lengths.cumsum(0) - lengths)[:, None], 0).to(flat.device)
    return F.embedding(rows, flat), mask.long().to(flat.device)


def cut(hidden: Tensor, starts: Sequence[int], counts: Sequence[int]) -> list[Tensor]:
    """Return ``counts[i]`` states from ``starts[i]`` on, of each row of ``hidden`` (batch, length, size)."""
    # One look-up and one split: slices one by one would each cost a batch of zeros in the backward pass.
    length = hidden.shape[1]
    rows = [
        torch.arange(place * length + start, place * length + start + count)
        for place, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return list(F.embedding(torch.cat(rows).to(hidden.device), hidden.flatten(0, 1)).split(list(counts)))
