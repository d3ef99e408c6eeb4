"""Prompts that begin with each other, read as one text: the steps of an episode that is told as a conversation.

At step t an agent reads all that was said up to then, and scores what it might do. Read one by one, the prompts of an
episode of n steps take some n²/2 observations. They are beginnings of one text, the *trunk*, so here that is read once,
under plain causal attention, and the candidates of each step side by side after it, in the same pass: each sees the
trunk up to its step, and its own beginning. No mask of tokens x tokens is laid out; candidates have one of rows x
tokens, for so many rows at once. What is computed is what each prompt would give alone, gradients too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from groundling.lm.backbone import Backbone
from groundling.lm.packing import Layout, ScoringQuestion, Tokens, as_tree
from groundling.lm.reader import Answer

_ROWS_AT_ONCE = 512
"""Rows of candidates whose attention shares a mask."""


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
            return self._attend(args[0], args[1], args[2], given.get("scale"))
        return func(*args, **given)


def _attention_of(trunk: int, parts: Sequence[_Part]) -> Attend:
    """That of one `Row`."""

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        by = F.scaled_dot_product_attention
        seen = [by(query[:, :, :trunk], key[:, :, :trunk], value[:, :, :trunk], is_causal=True, scale=scale)]
        for part in parts:
            rows = slice(part.first, part.stop)
            keys = torch.cat([key[:, :, : part.seen], key[:, :, rows]], dim=2)
            values = torch.cat([value[:, :, : part.seen], value[:, :, rows]], dim=2)
            seen.append(by(query[:, :, rows], keys, values, attn_mask=part.allowed, scale=scale))
        return torch.cat(seen, dim=2)

    return attend


def layouts_of(questions: Sequence[ScoringQuestion]) -> list[Layout]:
    """Of each question's candidates; laid out once where several have the same."""
    keys = [tuple(map(tuple, question.candidates)) for question in questions]
    layouts = {key: as_tree(key) for key in dict.fromkeys(keys)}
    return [layouts[key] for key in keys]


def read_chain(backbone: Backbone, questions: Sequence[ScoringQuestion]) -> list[Answer]:
    """The answers to questions whose prompts begin with each other, the longest last; see the module."""
    layouts = layouts_of(questions)
    row = Row.of(questions, layouts)
    device = backbone.device
    tokens, positions = row.tokens[None].to(device), row.positions[None].to(device)
    nothing = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)  # which bodies pass on as it is
    with AttentionBy(_attention_of(row.trunk, row.parts(device))):
        hidden = backbone.read(tokens, nothing, positions)[0]  # (length, hidden)
    places = [row.states(branch) for branch in row.branches]
    states = F.embedding(torch.cat(places).to(device), hidden).split([len(place) for place in places])
    return [Answer(rows, layout.targets) for rows, layout in zip(states, layouts, strict=True)]
