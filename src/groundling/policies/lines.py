"""Many texts read in one pass: a line for each, and of each line the positions that predict what counts."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.lm import LanguageModel
from groundling.lm.read.packing import MAX_ROWS, ScoringQuestion, padded, split_wide
from groundling.lm.read.reader import WORTH_SHARING
from groundling.runtime.processes import in_parts


class Lines(NamedTuple):
    """What is read at once; of each line the last positions count."""

    prompts: Sequence[Sequence[int]]
    """What the encoder reads, or what a causal model reads first."""
    written: Sequence[Sequence[int]]
    """What a causal model reads after the prompt, or the decoder, its start token included."""
    counts: Sequence[int]
    """How many of its last positions; of a causal model the prompt's last one and those after it."""

    def only(self, indices: Sequence[int]) -> "Lines":
        """These lines alone."""
        return Lines(
            [self.prompts[index] for index in indices],
            [self.written[index] for index in indices],
            [self.counts[index] for index in indices],
        )


def shares_prompt(prompt: Sequence[int]) -> bool:
    """Whether a prompt is long enough for texts to it to be read in one row with it."""
    return len(prompt) >= WORTH_SHARING


def read_states(lm: LanguageModel, lines: Lines) -> Tensor:
    """Final hidden states of the positions that count, line by line, where the model reads: (their number, hidden).

    A causal model reads a prompt of several texts once, and the texts after it side by side in one row, none of which
    sees another; an encoder reads it once anyway.
    """
    if lm.is_encoder_decoder:
        return _decode(lm, lines).to(lm.device)
    # Processes with parts of the layers meet at each of them: all go through equally often, by one pass each.
    groups = [] if any(map(in_parts, lm.parameters())) else _groups(lines)
    states = _read_groups(lm, lines, groups) if groups else {}
    apart = [index for index in range(len(lines.counts)) if index not in states]
    lengths = [len(lines.prompts[index]) + len(lines.written[index]) for index in apart]
    # Of a model whose positions depend on a line's length padding would make short lines long ones.
    for places in lm.backbone.layers.by_stage(lengths):
        indices = [apart[place] for place in places]
        alone = lines.only(indices)
        states.update(zip(indices, _read(lm, alone).split(list(alone.counts)), strict=True))
    # A model spread over several devices ends on another one.
    return torch.cat([states[index] for index in range(len(lines.counts))]).to(lm.device)


def _groups(lines: Lines) -> list[list[int]]:
    """Of the prompts that several lines have, the lines of each that share a row."""
    to_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(lines.prompts):
        if shares_prompt(prompt):
            to_prompt.setdefault(tuple(prompt), []).append(index)
    groups = []
    for prompt, indices in to_prompt.items():
        # With a long prompt as many as it has tokens: their mask is then no larger than its own.
        parts = split_wide([lines.written[index] for index in indices], max(MAX_ROWS, len(prompt)))
        groups += [[indices[place] for place in part] for part in parts if len(part) > 1]
    return groups


def _read_groups(lm: LanguageModel, lines: Lines, groups: Sequence[Sequence[int]]) -> dict[int, Tensor]:
    """States of each line's positions that count, by the line's index."""
    # A candidate's last token is predicted, and never read; here all of a line is.
    questions = [
        ScoringQuestion([*lines.prompts[group[0]]], [[*lines.written[index], 0] for index in group])
        for group in groups
    ]
    answers = lm.read(questions)
    places, first = [], 0
    for group, answer in zip(groups, answers, strict=True):
        lengths = [len(lines.written[index]) + 1 for index in group]
        for index, rows in zip(group, answer.targets[0].split(lengths), strict=True):
            places.append(first + rows[len(rows) - lines.counts[index] :])
        first += len(answer.rows)
    order = [index for group in groups for index in group]
    states = _rows_at(torch.cat([answer.rows for answer in answers]), torch.cat(places))
    return dict(zip(order, states.split([lines.counts[index] for index in order]), strict=True))


def _read(lm: LanguageModel, lines: Lines) -> Tensor:
    """States of the positions that count, each line read on its own."""
    whole = [[*prompt, *ids] for prompt, ids in zip(lines.prompts, lines.written, strict=True)]
    tokens, _ = padded(whole, lm.device)
    # What pads a row on its right is seen by nothing before it.
    return _last(lm.backbone.read(tokens, None, None), list(map(len, whole)), lines.counts)


def _decode(lm: LanguageModel, lines: Lines) -> Tensor:
    """The decoder's states of the positions that count."""
    distinct = list(dict.fromkeys(map(tuple, lines.prompts)))
    places = {prompt: place for place, prompt in enumerate(distinct)}
    tokens, mask = padded(distinct, lm.device)
    encoded = lm.backbone.encode(tokens, mask)
    if len(distinct) < len(lines.prompts):
        rows = torch.tensor([places[tuple(prompt)] for prompt in lines.prompts], device=mask.device)
        encoded, mask = encoded[rows.to(encoded.device)], mask[rows]
    written, _ = padded(lines.written, lm.device)
    hidden = lm.backbone.decode(written, encoded, mask, None)
    return _last(hidden, list(map(len, lines.written)), lines.counts)


def _last(hidden: Tensor, lengths: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Of each row of (rows, longest, hidden), which has so many positions, the last ``counts``."""
    width = hidden.shape[1]
    places = [
        torch.arange(row * width + length - count, row * width + length)
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    return _rows_at(hidden.flatten(0, 1), torch.cat(places))


def _rows_at(states: Tensor, places: Tensor) -> Tensor:
    # A look-up, whose backward pass is one addition; logits are then taken of these rows alone.
    return F.embedding(places.to(states.device), states)


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """What was found of the tokens that count, (their number, ...), at their places (*mask.shape, ...); elsewhere 0."""
    if bool(mask.all()):
        return values.view(*mask.shape, *values.shape[1:])
    places = mask.flatten().nonzero()[:, 0].to(values.device)
    spread = values.new_zeros(mask.numel(), *values.shape[1:]).index_copy(0, places, values)
    return spread.view(*mask.shape, *values.shape[1:])
