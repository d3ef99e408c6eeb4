"""Final hidden states of candidates, read by the decoders of encoder-decoder models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groundling.lm.backbone import Backbone
from groundling.lm.read.batching import TOKENS_AT_ONCE, Batching, batches, cut, padded, padded_states
from groundling.lm.read.layout import Layout, RowStates, ScoringQuestion, Tokens, decoder_layout, run_targets, runs_of


@dataclass
class EncoderDecoderReader:
    """Reads questions with one encoder-decoder model, whose decoder begins with ``start_token``."""

    backbone: Backbone
    start_token: int
    encoded: dict[tuple[int, ...], Tensor] | None = field(default=None, init=False)
    """Encoder states of the last call's prompts, reused by calls without gradients; None: nothing is kept."""

    def packed(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Decode all candidates of a prompt in one row."""
        keys = [tuple(map(tuple, question.candidates)) for question in questions]
        known = {key: decoder_layout(key, self.start_token) for key in dict.fromkeys(keys)}
        layouts = [known[key] for key in keys]
        states = self._encode([question.prompt for question in questions])
        rows: dict[int, Tensor] = {}
        for batch in self._batches(list(map(len, states)), [layout.num_rows for layout in layouts]):
            hidden = self._decode([layouts[index] for index in batch], [states[index] for index in batch])
            counts = [layouts[index].num_rows for index in batch]
            rows.update(zip(batch, cut(hidden, [0] * len(batch), counts), strict=True))
        return [RowStates(rows[index], layout.targets) for index, layout in enumerate(layouts)]

    def _decode(self, layouts: Sequence[Layout], states: Sequence[Tensor]) -> Tensor:
        """Return the decoder's states (batch, longest, hidden) of a batch of layouts."""
        tokens = pad_sequence([torch.tensor(layout.tokens) for layout in layouts], batch_first=True)
        allowed = torch.eye(tokens.shape[1], dtype=torch.bool).repeat(len(layouts), 1, 1, 1)
        for place, layout in enumerate(layouts):
            allowed[place, 0, : layout.num_rows, : layout.num_rows] = layout.visible
        encoded, mask = padded_states(states)
        allowed = self.backbone.attention_mask(allowed.to(encoded.device))
        return self.backbone.decode(tokens.to(encoded.device), encoded, mask, allowed)

    def _batches(self, lengths: Sequence[int], counts: Sequence[int]) -> Iterator[list[int]]:
        """Yield batches of prompts of these lengths that are decoded together, each with ``counts`` rows."""
        most_pairs = Batching.for_device(self.backbone.device).max_pairs
        # The decoder's rows are few, so batches are wide: padding costs only the cross-attention's keys.
        for batch in batches(lengths, TOKENS_AT_ONCE, max_waste=0.1):
            parts = batches([counts[index] for index in batch], TOKENS_AT_ONCE, float("inf"), most_pairs)
            yield from ([batch[place] for place in sorted(part)] for part in parts)

    def plain(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Decode each candidate in a row of its own; prompts are still encoded once."""
        runs = [runs_of(question.candidates) for question in questions]
        owners = [owner for owner, its_runs in enumerate(runs) for _ in its_runs]
        lines = [[self.start_token, *run] for its_runs in runs for run in its_runs]
        hidden = iter(self._decode_lines([question.prompt for question in questions], owners, lines))
        return [
            RowStates(torch.cat([next(hidden) for _ in its_runs]), run_targets(question.candidates, its_runs))
            for question, its_runs in zip(questions, runs, strict=True)
        ]

    def states(self, prompts: Sequence[Tokens]) -> Tensor:
        """Return the decoder's first state for each prompt, float32 (num_prompts, hidden)."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        lines = [[self.start_token]] * len(distinct)
        hidden = self._decode_lines(distinct, range(len(distinct)), lines)
        first = {prompt: states[0] for prompt, states in zip(distinct, hidden, strict=True)}
        return torch.stack([first[tuple(prompt)] for prompt in prompts]).float()

    def _decode_lines(self, prompts: Sequence[Tokens], owners: Sequence[int], lines: Sequence[Tokens]) -> list[Tensor]:
        """Return the states (length, hidden) of each line, decoded alone; ``owners`` are its prompts' indices."""
        encoded, states = self._encode(prompts), dict[int, Tensor]()
        lengths = [len(encoded[owner]) for owner in owners]
        for batch in Batching.for_device(self.backbone.device).batches(lengths):
            tokens = pad_sequence([torch.tensor(lines[index]) for index in batch], batch_first=True)
            context, mask = padded_states([encoded[owners[index]] for index in batch])
            hidden = self.backbone.decode(tokens.to(context.device), context, mask, None)
            counts = [len(lines[index]) for index in batch]
            states.update(zip(batch, cut(hidden, [0] * len(batch), counts), strict=True))
        return [states[index] for index in range(len(lines))]

    def _encode(self, prompts: Sequence[Tokens]) -> list[Tensor]:
        """Return the encoder's states (length, hidden) of each prompt; equal prompts are encoded once."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        kept = None if torch.is_grad_enabled() else self.encoded
        states = {prompt: kept[prompt] for prompt in distinct if prompt in kept} if kept else {}
        new = [prompt for prompt in distinct if prompt not in states]
        device = self.backbone.device
        for batch in Batching.for_device(device).batches([len(prompt) for prompt in new]):
            tokens, mask = padded([new[index] for index in batch], device)
            hidden = self.backbone.encode(tokens, mask)
            counts = [len(new[index]) for index in batch]
            prompts_of = [new[index] for index in batch]
            states.update(zip(prompts_of, cut(hidden, [0] * len(batch), counts), strict=True))
        if kept is not None:
            self.encoded = states
        return [states[tuple(prompt)] for prompt in prompts]
