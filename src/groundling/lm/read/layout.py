"""Rows of a pass that score the candidates of one prompt.

A *row* is one position whose final hidden state is needed. The *root* (the prompt's last token, or the decoder's start
token) predicts the first token of every candidate; the row that has read tokens 1..t of a candidate predicts token
t + 1. In a tree, candidates share the rows of a common beginning: "turn left" and "turn right" need "turn" once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Tokens = Sequence[int]

MAX_ROWS = 512  # Rows read after a prompt in one pass: their mask grows with the square of their number


class ScoringQuestion(NamedTuple):
    """A prompt and its candidates, in token ids."""

    prompt: list[int]
    candidates: list[list[int]]


@dataclass(frozen=True)
class RowStates:
    """Final hidden states that score the candidates of a question."""

    rows: Tensor  # (num_rows, hidden), the root first
    targets: Tensor  # int64 (2, num_targets): predicting row and predicted token, candidate by candidate


@dataclass(frozen=True)
class Layout:
    """Rows of a question, and which of them predicts which token."""

    tokens: list[int]  # (num_rows,), the token that each row reads; -1 for the root of a tree, the prompt's last token
    depths: list[int]  # (num_rows,), how many tokens each row is after the root
    visible: Tensor  # bool (num_rows, num_rows), which rows each row attends to
    targets: Tensor  # as in `RowStates`

    @property
    def num_rows(self) -> int:
        return len(self.tokens)


def tree_layout(candidates: Sequence[Tokens]) -> Layout:
    """Return candidates as a tree of common beginnings, for causal models that take positions and a 4D mask."""
    tokens, depths, parents = [-1], [0], [0]
    targets: list[tuple[int, int]] = []
    children: dict[tuple[int, int], int] = {}  # (row, next token) -> row
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
    return Layout(tokens, depths, visible, _as_tensor(targets))


def layouts_of(questions: Sequence[ScoringQuestion]) -> list[Layout]:
    """Return the tree of each question, computed once for questions with the same candidates."""
    keys = [tuple(map(tuple, question.candidates)) for question in questions]
    layouts = {key: tree_layout(key) for key in dict.fromkeys(keys)}
    return [layouts[key] for key in keys]


def runs_of(candidates: Sequence[Tokens]) -> list[tuple[int, ...]]:
    """Return the distinct token runs that are read of candidates: all but their last tokens; at least one run."""
    return sorted({tuple(candidate[:-1]) for candidate in candidates if len(candidate) > 1}) or [()]


def run_targets(candidates: Sequence[Tokens], runs: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the targets (see `RowStates`) of rows that are, run by run, a root and the tokens of the run."""
    first_row: dict[tuple[int, ...], int] = {(): 0}
    row = 0
    for run in runs:
        first_row[run] = row
        row += 1 + len(run)
    return _as_tensor(
        [
            (first_row[tuple(candidate[:-1])] + position if position else 0, token)
            for candidate in candidates
            for position, token in enumerate(candidate)
        ]
    )


def decoder_layout(candidates: Sequence[Tokens], start_token: int) -> Layout:
    """Return candidates as separate runs, each after its own start token, for decoders."""
    # Within a run the distances between places are the true ones, so relative position biases need no change.
    runs = runs_of(candidates)
    sizes = [1 + len(run) for run in runs]
    visible = torch.block_diag(*(torch.ones(size, size, dtype=torch.bool).tril() for size in sizes))
    return Layout(
        [token for run in runs for token in (start_token, *run)],
        [depth for size in sizes for depth in range(size)],
        visible.bool(),
        run_targets(candidates, runs),
    )


def split_wide(candidates: Sequence[Tokens], max_rows: int) -> list[list[int]]:
    """Return indices of candidates in parts of about `max_rows` rows at most; common beginnings stay together."""
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


def _as_tensor(targets: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(targets, dtype=torch.long).reshape(-1, 2).T  # (2, num_targets)
