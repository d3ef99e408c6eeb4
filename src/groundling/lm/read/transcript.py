"""Prompts that begin with each other, read as one text: the steps of an episode that is told as a conversation.

At step t an agent reads all that was said up to then, and scores what it might do. Read one by one, the prompts of an
episode of n steps take some n²/2 observations. They are beginnings of one text, the *trunk*, so here that is read once,
under plain causal attention, and the candidates of each step side by side after it, in the same pass: each sees the
trunk up to its step, and its own beginning. No mask of tokens x tokens is laid out; candidates have one of rows x
tokens, for so many rows at once. What is computed is what each prompt would give alone, gradients too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from groundling.lm.backbone import Backbone
from groundling.lm.read.packing import Layout, ScoringQuestion, Tokens, as_tree
from groundling.lm.read.reader import TOKENS_AT_ONCE, RowStates

T = TypeVar("T")
_ROWS_AT_ONCE = 512
"""Rows of candidates whose attention shares a mask."""
_TOKENS_AT_ONCE = 1024
"""Tokens of short texts that go through the body together on a CPU: enough for its products to be fast, and little
enough that Linux does not take their memory back."""


def chains(prompts: Sequence[Tokens]) -> list[list[int]]:
    """Indices of prompts in groups of which each begins with the one before it; equal ones are in one group."""
    keys = [tuple(prompt) for prompt in prompts]
    groups: list[list[int]] = []
    # In sorted order a text is followed at once by those that begin with it.
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        before = keys[groups[-1][-1]] if groups else None
        if before is not None and keys[index][: len(before)] == before:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


@dataclass(frozen=True)
class Branch:
    """The candidates of one step: rows after the trunk, which see it up to the step's last token."""

    place: int
    """Of that token in the trunk; its state predicts each candidate's first token."""
    first: int
    """Where the branch's rows begin in the whole row."""
    layout: Layout
    """Its row 0 is the trunk's token; the others are the branch's."""

    @property
    def stop(self) -> int:
        """Where its rows end."""
        return self.first + self.layout.num_rows - 1


@dataclass(frozen=True)
class Row:
    """A trunk and its branches, as one row of tokens.

    `tokens`, `positions`: int64 (length,). The trunk comes first.
    """

    tokens: Tensor
    positions: Tensor
    trunk: int
    branches: list[Branch]

    @classmethod
    def of(cls, questions: Sequence[ScoringQuestion], layouts: Sequence[Layout]) -> Row:
        """Of questions whose prompts begin with each other, the longest last."""
        trunk = questions[-1].prompt
        tokens, positions = list(trunk), list(range(len(trunk)))
        branches = []
        for question, layout in zip(questions, layouts, strict=True):
            place = len(question.prompt) - 1
            branches.append(Branch(place, len(tokens), layout))
            tokens += layout.tokens[1:]
            positions += [place + depth for depth in layout.depths[1:]]
        return cls(torch.tensor(tokens), torch.tensor(positions), len(trunk), branches)

    def states(self, branch: Branch) -> Tensor:
        """Which of the row's positions are the branch's rows, its root first."""
        return torch.tensor([branch.place, *range(branch.first, branch.stop)])

    def parts(self, device: torch.device) -> list[_Part]:
        """The branches in parts of some `_ROWS_AT_ONCE` rows."""
        groups: list[list[Branch]] = []
        for branch in self.branches:
            if branch.stop == branch.first:
                continue
            if not groups or branch.stop - groups[-1][0].first > _ROWS_AT_ONCE:
                groups.append([])
            groups[-1].append(branch)
        return [_Part.of(group, device) for group in groups]


@dataclass(frozen=True)
class _Part:
    """Branches whose attention is computed at once: rows ``first`` to ``stop`` of the whole row."""

    first: int
    stop: int
    seen: int
    """Of the trunk they look at its first so many tokens, or fewer."""
    allowed: Tensor
    """Bool (rows, seen + rows)."""

    @classmethod
    def of(cls, branches: Sequence[Branch], device: torch.device) -> _Part:
        first, stop, seen = branches[0].first, branches[-1].stop, branches[-1].place + 1
        ends = torch.cat([torch.full((b.stop - b.first,), b.place + 1) for b in branches])
        trunk = torch.arange(seen) < ends[:, None]  # (rows, seen)
        rows = torch.block_diag(*(b.layout.visible[1:, 1:] for b in branches)).bool()  # (rows, rows)
        return cls(first, stop, seen, torch.cat([trunk, rows], dim=1).to(device))


Attend = Callable[[Tensor, Tensor, Tensor, float | None], Tensor]
"""From queries, keys and values, (1, heads, length, size) each, and the scale of their products."""


class AttentionBy(TorchFunctionMode):
    """Within this context a body's attention is what a function makes of it, whatever its mask says.

    It is for bodies that attend by PyTorch's `scaled_dot_product_attention`, once in each layer.
    """

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            if torch.is_autocast_enabled(query.device.type):
                # Autocast casts what goes into the function whose place this takes; rotated keys come in float32.
                dtype = torch.get_autocast_dtype(query.device.type)
                query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            if (sharing := query.shape[2] // key.shape[2]) > 1:
                # Of one row alone Transformers lays out the heads that share a key as if they were rows. Of several it
                # repeats the key for each of them.
                query = query.reshape(len(query), -1, key.shape[2], query.shape[3])
                key, value = (one.repeat_interleave(sharing, dim=1) for one in (key, value))
            return self._attend(query, key, value, given.get("scale"))
        return func(*args, **given)


def _attention_of(rows: Sequence[tuple[int, Sequence[_Part]]], lengths: Sequence[int]) -> Attend:
    """That of several `Row`s, of such lengths, one after the other: of each its trunk's tokens and its parts."""

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        queries, keys, values = (one.split(list(lengths), dim=2) for one in (query, key, value))
        seen = [_attention(row, q, k, v, scale) for row, q, k, v in zip(rows, queries, keys, values, strict=True)]
        return torch.cat(list(itertools.chain.from_iterable(seen)), dim=2)

    return attend


def _attention(
    row: tuple[int, Sequence[_Part]], query: Tensor, key: Tensor, value: Tensor, scale: float | None
) -> Iterator[Tensor]:
    """Of one row: of its trunk, then of each part."""
    trunk, parts = row
    by = F.scaled_dot_product_attention
    yield by(query[:, :, :trunk], key[:, :, :trunk], value[:, :, :trunk], is_causal=True, scale=scale)
    for part in parts:
        rows = slice(part.first, part.stop)
        keys = torch.cat([key[:, :, : part.seen], key[:, :, rows]], dim=2)
        values = torch.cat([value[:, :, : part.seen], value[:, :, rows]], dim=2)
        yield by(query[:, :, rows], keys, values, attn_mask=part.allowed, scale=scale)


def layouts_of(questions: Sequence[ScoringQuestion]) -> list[Layout]:
    """Of each question's candidates; laid out once where several have the same."""
    keys = [tuple(map(tuple, question.candidates)) for question in questions]
    layouts = {key: as_tree(key) for key in dict.fromkeys(keys)}
    return [layouts[key] for key in keys]


def read_growing(backbone: Backbone, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
    """The answers to questions, of whose prompts those are read as one text that begin with each other."""
    layouts = layouts_of(questions)
    groups = chains([question.prompt for question in questions])
    rows = [Row.of([questions[i] for i in group], [layouts[i] for i in group]) for group in groups]
    most = tokens_at_once(backbone.device, _TOKENS_AT_ONCE)
    states = [
        states
        for together in passes(rows, [len(row.tokens) for row in rows], most)
        for states in _read(backbone, together)
    ]
    answers: dict[int, RowStates] = {}
    for group, row, hidden in zip(groups, rows, states, strict=True):
        places = [row.states(branch) for branch in row.branches]
        picked = F.embedding(torch.cat(places).to(hidden.device), hidden).split([len(p) for p in places])
        answers.update(
            (index, RowStates(one, layouts[index].targets)) for index, one in zip(group, picked, strict=True)
        )
    return [answers[index] for index in range(len(questions))]


def tokens_at_once(device: torch.device, on_cpu: int) -> int:
    """Tokens of several texts that go through the body together."""
    return on_cpu if device.type == "cpu" else TOKENS_AT_ONCE


def passes(items: Sequence[T], lengths: Sequence[int], most: int) -> list[list[T]]:
    """Items in their order, in groups of at most so many tokens, unless one has more."""
    groups: list[list[T]] = []
    filled = 0
    for item, length in zip(items, lengths, strict=True):
        if not groups or filled + length > most:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += length
    return groups


def _read(backbone: Backbone, rows: Sequence[Row]) -> list[Tensor]:
    """Final hidden states (length, hidden) of each row."""
    device = backbone.device
    tokens = torch.cat([row.tokens for row in rows]).to(device)
    positions = torch.cat([row.positions for row in rows]).to(device)
    lengths = [len(row.tokens) for row in rows]
    nothing = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)  # which bodies pass on as it is
    with AttentionBy(_attention_of([(row.trunk, row.parts(device)) for row in rows], lengths)):
        hidden = backbone.read(tokens[None], nothing, positions[None])[0]  # (length of all, hidden)
    return list(hidden.split(lengths))
