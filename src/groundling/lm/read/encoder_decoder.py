"""Final hidden states of candidates, read by the decoders of encoder-decoder models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groundling.lm.backbone import Backbone
from groundling.lm.read.batching import TOKENS_AT_ONCE, Batching, batches, cut, padded, padded_states
from groundling.lm.read.layout import RowStates, ScoringQuestion, Tokens, decoder_layout, run_targets, runs_of


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
        lines, visible = [layout.tokens for layout in layouts], [layout.visible for layout in layouts]
        rows = self._decode([question.prompt for question in questions], lines, visible)
        return [RowStates(one, layout.targets) for one, layout in zip(rows, layouts, strict=True)]

    def plain(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Decode each candidate in a row of its own; prompts are still encoded once."""
        runs = [runs_of(question.candidates) for question in questions]
        pairs = list(zip(questions, runs, strict=True))
        prompts = [question.prompt for question, its_runs in pairs for _ in its_runs]
        hidden = iter(self._decode(prompts, [[self.start_token, *run] for its_runs in runs for run in its_runs]))
        return [
            RowStates(torch.cat([next(hidden) for _ in its_runs]), run_targets(question.candidates, its_runs))
            for question, its_runs in pairs
        ]

    def states(self, prompts: Sequence[Tokens]) -> Tensor:
        """Return the decoder's first state for each prompt, float32 (num_prompts, hidden)."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        hidden = self._decode(distinct, [[self.start_token]] * len(distinct))
        first = {prompt: states[0] for prompt, states in zip(distinct, hidden, strict=True)}
        return torch.stack([first[tuple(prompt)] for prompt in prompts]).float()

    def _decode(
        self, prompts: Sequence[Tokens], lines: Sequence[Tokens], visible: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return the decoder's states (length, hidden) of a line after each prompt."""
        # ``visible``: bool (length, length) for each line, which places each place attends to; None: those before it.
        encoded, states = self._encode(prompts), dict[int, Tensor]()
        for batch in self._batches(list(map(len, encoded)), None if visible is None else list(map(len, lines))):
            tokens = pad_sequence([torch.tensor(lines[index]) for index in batch], batch_first=True)
            context, mask = padded_states([encoded[index] for index in batch])
            allowed = None
            if visible is not None:
                allowed = torch.eye(tokens.shape[1], dtype=torch.bool).repeat(len(batch), 1, 1, 1)
                for place, index in enumerate(batch):
                    allowed[place, 0, : len(lines[index]), : len(lines[index])] = visible[index]
                allowed = self.backbone.attention_mask(allowed.to(context.device))
            hidden = self.backbone.decode(tokens.to(context.device), context, mask, allowed)
            counts = [len(lines[index]) for index in batch]
            states.update(zip(batch, cut(hidden, [0] * len(batch), counts), strict=True))
        return [states[index] for index in range(len(lines))]

    def _batches(self, lengths: Sequence[int], counts: Sequence[int] | None) -> Iterator[list[int]]:
        """Yield batches of prompts of these lengths, each followed by ``counts`` packed rows; None: by one line."""
        batching = Batching.for_device(self.backbone.device)
        if counts is None:
            yield from batching.batches(lengths)
            return
        # The decoder's rows are few, so batches are wide: padding costs only the cross-attention's keys.
        for batch in batches(lengths, TOKENS_AT_ONCE, max_waste=0.1):
            sizes = [counts[index] for index in batch]
            for part in batches(sizes, TOKENS_AT_ONCE, float("inf"), batching.max_pairs):
                yield [batch[place] for place in sorted(part)]

    def _encode(self, prompts: Sequence[Tokens]) -> list[Tensor]:
        """Return the encoder's states (length, hidden) of each prompt; equal prompts are encoded once."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        kept = None if torch.is_grad_enabled() else self.encoded
        states = {prompt: kept[prompt] for prompt in distinct if prompt in kept} if kept else {}
        new = [prompt for prompt in distinct if prompt not in states]
        for batch in Batching.for_device(self.backbone.device).batches([len(prompt) for prompt in new]):
            batch_prompts = [new[index] for index in batch]
            hidden = self.backbone.encode(*padded(batch_prompts, self.backbone.device))
            parts = cut(hidden, [0] * len(batch), list(map(len, batch_prompts)))
            states.update(zip(batch_prompts, parts, strict=True))
        if kept is not None:
            self.encoded = states
        return [states[tuple(prompt)] for prompt in prompts]
