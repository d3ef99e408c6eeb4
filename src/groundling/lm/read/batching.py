"""Group texts of similar length into batches, and pad them."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

TOKENS_AT_ONCE = 32_768  # Maximum number of prompt tokens per pass, which limits the memory for hidden states


class Batching(NamedTuple):
    """Limits of a padded batch: number of tokens, padding relative to other tokens, and number of query-key pairs."""

    max_tokens: int
    max_waste: float
    max_pairs: float

    @classmethod
    def for_device(cls, device: torch.device) -> Self:
        """Return a device's limits: accelerators need larger batches than CPUs, and lose less to padding."""
        # With 8 heads, 2**19 pairs take 16 MB per layer. From 32 MB on, reallocation in each pass doubles the time.
        return cls(4096, 0.03, 2**19) if device.type == "cpu" else cls(TOKENS_AT_ONCE, 0.25, float("inf"))


def batches(
    lengths: Sequence[int], max_tokens: int, max_waste: float, max_pairs: float = float("inf")
) -> list[list[int]]:
    """Group indices of ``lengths`` so that padded batches contain little padding.

    For the limits, see `Batching`. A text that exceeds a limit gets its own batch.
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
    """Return token ids and a 0/1 mask, int64 (batch, longest), padded on the right or left."""
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    longest = int(lengths.max())
    places = torch.arange(longest)
    mask = places >= longest - lengths if left else places < lengths
    tokens = torch.full(mask.shape, filler)
    tokens[mask] = torch.tensor(list(itertools.chain.from_iterable(rows)), dtype=torch.long)
    return tokens.to(device), mask.long().to(device)


def padded_states(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad states (length, size) to a batch (batch, longest, size); also return its 0/1 int64 mask (batch, longest)."""
    flat = torch.cat(list(sequences))
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    places = torch.arange(int(lengths.max()))  # (longest,)
    mask = places < lengths[:, None]  # (batch, longest)
    # One look-up, because `pad_sequence` copies row by row, and its backward pass copies the whole batch for each row.
    rows = torch.where(mask, places + (lengths.cumsum(0) - lengths)[:, None], 0).to(flat.device)
    return F.embedding(rows, flat), mask.long().to(flat.device)


def cut(hidden: Tensor, starts: Sequence[int], counts: Sequence[int]) -> list[Tensor]:
    """Return ``counts[i]`` states, starting at ``starts[i]``, for each row i of ``hidden`` (batch, length, size)."""
    # One look-up and one split, because the backward pass of each slice would allocate a whole batch of zeros.
    length = hidden.shape[1]
    rows = [
        torch.arange(place * length + start, place * length + start + count)
        for place, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return list(F.embedding(torch.cat(rows).to(hidden.device), hidden.flatten(0, 1)).split(list(counts)))


Tokens = Sequence[int]

MAX_ROWS = 512  # Maximum number of rows read after a prompt in one pass; their mask grows quadratically


class ScoringQuestion(NamedTuple):
    """A prompt and its candidates as token ids."""

    prompt: list[int]
    candidates: list[list[int]]


@dataclass(frozen=True)
class RowStates:
    """Final hidden states from which the candidates of a question are scored."""

    rows: Tensor  # (num_rows, hidden), the root first
    targets: Tensor  # int64 (2, num_targets): predicting row and predicted token, candidate by candidate


@dataclass(frozen=True)
class Layout:
    """The rows of a question, and the tokens that each of them predicts."""

    tokens: list[int]  # (num_rows,), the token that each row reads; -1 for the root of a tree, the prompt's last token
    depths: list[int]  # (num_rows,), each row's number of tokens after the root
    visible: Tensor  # bool (num_rows, num_rows), which rows each row attends to
    targets: Tensor  # as in `RowStates`


def tree_layout(candidates: Sequence[Tokens]) -> Layout:
    """Arrange candidates as a prefix tree, for causal models that accept positions and a 4D mask."""
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
    return Layout(tokens, depths, visible, torch.tensor(targets, dtype=torch.long).reshape(-1, 2).T)


def layouts_of(
    questions: Sequence[ScoringQuestion], make: Callable[[Sequence[Tokens]], Layout] = tree_layout
) -> list[Layout]:
    """Return the layout of each question, computed once for questions with the same candidates."""
    keys = [tuple(map(tuple, question.candidates)) for question in questions]
    layouts = {key: make(key) for key in dict.fromkeys(keys)}
    return [layouts[key] for key in keys]


def runs_of(candidates: Sequence[Tokens]) -> list[tuple[int, ...]]:
    """Return the distinct runs of tokens to read: candidates without their last tokens; at least one run."""
    return sorted({tuple(candidate[:-1]) for candidate in candidates if len(candidate) > 1}) or [()]


def run_targets(candidates: Sequence[Tokens], runs: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the targets (see `RowStates`) for rows in which each run has a root, followed by its tokens."""
    first_row: dict[tuple[int, ...], int] = {(): 0}
    row = 0
    for run in runs:
        first_row[run] = row
        row += 1 + len(run)
    targets = [
        (first_row[tuple(candidate[:-1])] + position if position else 0, token)
        for candidate in candidates
        for position, token in enumerate(candidate)
    ]
    return torch.tensor(targets, dtype=torch.long).reshape(-1, 2).T  # (2, num_targets)


def decoder_layout(candidates: Sequence[Tokens], start_token: int) -> Layout:
    """Arrange candidates as separate runs, each after its own start token, for decoders."""
    # Within a run, distances between positions are unchanged, so relative position biases remain correct.
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
    """Split candidate indices into parts of at most about `max_rows` rows; common prefixes stay together."""
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
