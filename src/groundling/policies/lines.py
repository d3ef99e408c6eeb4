"""Many texts read in one pass: a line for each, and of each line the positions that predict what counts."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.lm import LanguageModel
from groundling.lm.packing import right_padded


class Lines(NamedTuple):
    """What is read at once; of each line the last positions count."""

    prompts: Sequence[Sequence[int]] | None
    """Of an encoder-decoder: what the encoder reads."""
    read: Sequence[Sequence[int]]
    """What the causal model, or the decoder, reads."""
    counts: Sequence[int]
    """How many of its last positions."""

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        written: Sequence[Sequence[int]],
        counts: Sequence[int],
        start_token: int | None,
    ) -> "Lines":
        """Prompts with what was written to them; ``start_token`` is read first by a decoder, None: a causal model."""
        if start_token is None:
            return cls(None, [[*prompt, *ids] for prompt, ids in zip(prompts, written, strict=True)], counts)
        return cls(prompts, [[start_token, *ids] for ids in written], counts)


def read_states(lm: LanguageModel, lines: Lines) -> Tensor:
    """Final hidden states of the positions that count, line by line: (their number, hidden)."""
    if lines.prompts is None and lm.backbone.layers.turns:
        return _by_stage(lm, lines)
    return _read_together(lm, lines)


def _by_stage(lm: LanguageModel, lines: Lines) -> Tensor:
    """Of a model whose positions depend on a line's length: padding would make short lines long ones."""
    states: dict[int, Tensor] = {}
    for indices in lm.backbone.layers.by_stage(list(map(len, lines.read))):
        counts = [lines.counts[index] for index in indices]
        together = _read_together(lm, Lines(None, [lines.read[index] for index in indices], counts))
        states.update(zip(indices, together.split(counts), strict=True))
    return torch.cat([states[index] for index in range(len(lines.read))])


def _read_together(lm: LanguageModel, lines: Lines) -> Tensor:
    read, _ = right_padded(lines.read, lm.device)
    if lines.prompts is None:
        # What pads a row on its right is seen by nothing before it.
        hidden = lm.backbone.read(read, None, None)
    else:
        distinct = list(dict.fromkeys(map(tuple, lines.prompts)))
        places = {prompt: place for place, prompt in enumerate(distinct)}
        tokens, mask = right_padded(distinct, lm.device)
        encoded = lm.backbone.encode(tokens, mask)
        if len(distinct) < len(read):
            prompt_rows = torch.tensor(
                [places[tuple(prompt)] for prompt in lines.prompts], device=mask.device
            )
            encoded, mask = encoded[prompt_rows], mask[prompt_rows]
        hidden = lm.backbone.decode(read, encoded, mask, None)
    width = hidden.shape[1]
    rows = [
        torch.arange(row * width + len(ids) - count, row * width + len(ids))
        for row, (ids, count) in enumerate(zip(lines.read, lines.counts, strict=True))
    ]
    # A look-up, whose backward pass is one addition; logits are then taken of these rows alone.
    return F.embedding(torch.cat(rows).to(hidden.device), hidden.flatten(0, 1))


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """What was found of the tokens that count, (their number, ...), at their places (*mask.shape, ...); elsewhere 0."""
    if bool(mask.all()):
        return values.view(*mask.shape, *values.shape[1:])
    places = mask.flatten().nonzero()[:, 0].to(values.device)
    spread = values.new_zeros(mask.numel(), *values.shape[1:]).index_copy(0, places, values)
    return spread.view(*mask.shape, *values.shape[1:])
