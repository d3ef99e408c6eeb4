"""How the candidates of one prompt become few rows of one pass, and how prompts of like length share a batch.

A *row* is one position whose final hidden state is needed: the *root* (the prompt's last token, or the decoder's
start token) predicts every candidate's first token, and the row that has read tokens 1..t of a candidate predicts
token t + 1. Candidates that begin alike share rows: "turn left" and "turn right" need the row of "turn" once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Tokens = Sequence[int]

# Rows of what comes after a prompt that are read in one pass at most: their mask grows with the square.
MAX_ROWS = 512


class ScoringQuestion(NamedTuple):
    """One prompt and the candidates asked about it, in token ids."""

    prompt: list[int]
    candidates: list[list[int]]


@dataclass(frozen=True)
class Layout:
    """The rows of one prompt's candidates, and which row predicts which candidate token.

    `tokens`: (num_rows,) the token each row reads. For a tree, row 0 is the prompt's own last token (-1 here).
    `depths`: (num_rows,) how many candidate tokens have been read, the row's own included.
    `visible`: bool (num_rows, num_rows): may row i attend to row j.
    `targets`: int64 (2, num_targets): the predicting row and the predicted token, of all tokens of the first candidate,
    then of the second one, and so on.
    """

    tokens: list[int]
    depths: list[int]
    visible: Tensor
    targets: Tensor

    @property
    def num_rows(self) -> int:
        """How many hidden states are needed, the root's included."""
        return len(self.tokens)


def as_tree(candidates: Sequence[Tokens]) -> Layout:
    """Candidates as a tree of shared beginnings, for causal models that take positions and a 4D mask."""
    tokens, depths, parents = [-1], [0], [0]
    targets: list[tuple[int, int]] = []
    children: dict[tuple[int, int], int] = {}  # (row, token read next) -> row
    for candidate in candidates:
        row = 0
        for position, token in enumerate(candidate):
            targets.append((row, token))
            if position == len(candidate) - 1:
                break  # the last token is predicted, never read
            if (row, token) not in children:
                children[row, token] = len(tokens)
                tokens.append(token)
                depths.append(depths[row] + 1)
                parents.append(row)
            row = children[row, token]
    visible = torch.eye(len(tokens), dtype=torch.bool)  # (num_rows, num_rows)
    for row in range(1, len(tokens)):
        visible[row] |= visible[parents[row]]
    return Layout(tokens, depths, visible, _target_tensor(targets))


def as_chains(candidates: Sequence[Tokens], start_token: int) -> Layout:
    """Candidates as separate runs, each from its own start token, for decoders with relative positions.

    Inside a run the distances between array indices are the true ones, so relative position biases come out right
    without being touched. A run that is the beginning of another one is left out.
    """
    chains = runs_of(candidates)
    tokens: list[int] = []
    depths: list[int] = []
    row_after: dict[tuple[int, ...], int] = {}  # tokens read -> row
    for chain in chains:
        for depth in range(len(chain) + 1):
            row_after.setdefault(chain[:depth], len(tokens) + depth)
        tokens += [start_token, *chain]
        depths += range(len(chain) + 1)
    visible = torch.block_diag(
        *(torch.ones(len(chain) + 1, len(chain) + 1, dtype=torch.bool).tril() for chain in chains)
    ).bool()  # (num_rows, num_rows)
    targets = [
        (row_after[tuple(candidate[:position])], token)
        for candidate in candidates
        for position, token in enumerate(candidate)
    ]
    return Layout(tokens, depths, visible, _target_tensor(targets))


def runs_of(candidates: Sequence[Tokens]) -> list[tuple[int, ...]]:
    """What is read of candidates: all but their last tokens, without those runs that are the beginning of another."""
    read = sorted({tuple(candidate[:-1]) for candidate in candidates})
    # In sorted order a sequence is followed at once by its extensions, if it has any.
    return [run for run, after in zip(read, [*read[1:], None], strict=True) if not _begins(run, after)]


def as_runs(candidates: Sequence[Tokens], runs: Sequence[tuple[int, ...]]) -> Tensor:
    """Targets (see `Layout`) when runs are read after the prompt: its last state is row 0, run by run come theirs."""
    row_after: dict[tuple[int, ...], int] = {(): 0}  # tokens read -> row
    first = 1
    for run in runs:
        for depth in range(1, len(run) + 1):
            row_after.setdefault(run[:depth], first + depth - 1)
        first += len(run)
    return _target_tensor(
        [(row_after[tuple(c[:position])], token) for c in candidates for position, token in enumerate(c)]
    )


def as_lines(candidates: Sequence[Tokens]) -> Tensor:
    """Targets (see `Layout`) when each candidate is read on a line of its own and nothing is shared.

    The rows of candidate i are its root and those after its tokens but the last, in order; then candidate i + 1's.
    """
    targets = []
    first_row = 0
    for candidate in candidates:
        targets += [(first_row + position, token) for position, token in enumerate(candidate)]
        first_row += max(1, len(candidate))
    return _target_tensor(targets)


def batches(
    lengths: Sequence[int], max_tokens: int, max_waste: float, max_pairs: float = float("inf")
) -> list[list[int]]:
    """Groups indices of `lengths` so that a padded batch of each group has little padding.

    `max_tokens`: cells of a padded batch (a longer single item still gets a batch of its own).
    `max_waste`: padding cells allowed, as a share of the filled ones.
    `max_pairs`: pairs of a padded batch's tokens of which one attends to the other (likewise).
    """
    groups: list[list[int]] = []
    width = filled = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        size = len(groups[-1]) + 1 if groups else 1
        cells = width * size
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
    """Token ids and 0/1 mask, int64 (batch, longest), with ``filler`` behind each row, or before it."""
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    longest = int(lengths.max())
    places = torch.arange(longest)
    mask = places >= longest - lengths if left else places < lengths
    tokens = torch.full(mask.shape, filler)
    tokens[mask] = torch.tensor(list(itertools.chain.from_iterable(rows)), dtype=torch.long)
    return tokens.to(device), mask.long().to(device)


def split_wide(candidates: Sequence[Tokens], max_rows: int) -> list[list[int]]:
    """Indices of candidates in parts of at most about `max_rows` rows, for prompts with very many candidates.

    Sorted by tokens, so that those that begin alike stay together.
    """
    if sum(map(len, candidates)) <= max_rows:
        return [list(range(len(candidates)))]
    parts: list[list[int]] = []
    rows = max_rows
    for index in sorted(range(len(candidates)), key=lambda i: tuple(candidates[i])):
        if not parts or rows + len(candidates[index]) > max_rows:
            parts.append([])
            rows = 0
        parts[-1].append(index)
        rows += len(candidates[index])
    return parts


def _begins(run: tuple[int, ...], other: tuple[int, ...] | None) -> bool:
    return other is not None and other[: len(run)] == run


def _target_tensor(targets: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(targets, dtype=torch.long).reshape(-1, 2).T  # (2, num_targets)
