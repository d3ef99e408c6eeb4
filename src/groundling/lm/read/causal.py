"""Compute the final hidden states of prompts and their candidates with causal and encoder-decoder models."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from groundling.lm.backbone import Backbone
from groundling.lm.read.batching import (
    TOKENS_AT_ONCE,
    Batching,
    Layout,
    RowStates,
    ScoringQuestion,
    Tokens,
    batches,
    cut,
    decoder_layout,
    layouts_of,
    padded,
    padded_states,
    run_targets,
    runs_of,
    tree_layout,
)
from groundling.lm.read.exactness import agree, example_tokens

WORTH_SHARING = 16  # Minimum length of a common prefix that is worth a separate pass or a shared row with a mask


@dataclass
class CausalReader:
    backbone: Backbone
    # Results of the exactness check for common prefixes, keyed by `Layers.check_length`.
    _shares: dict[int, bool] = field(default_factory=dict, init=False)

    def packed(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Read each prompt in one row with the tree of its candidates; read the prompts' common prefix only once."""
        layouts, prompts = layouts_of(questions), [question.prompt for question in questions]
        longest = max(len(p) + max(layout.depths) for p, layout in zip(prompts, layouts, strict=True))
        rows = self._read_trees(prompts, layouts, self._shared(prompts, longest))
        return [RowStates(one, layout.targets) for one, layout in zip(rows, layouts, strict=True)]

    def _shared(self, prompts: Sequence[Tokens], longest: int) -> int:
        """Return the length of the common prefix that can be read once, leaving at least one token of each prompt."""
        first, last = min(map(list, prompts)), max(map(list, prompts))  # their common prefix is that of all prompts
        shortest = min(map(len, prompts)) - 1
        shared = next((i for i in range(shortest) if first[i] != last[i]), shortest)
        # In training mode, which is only used for gradient checkpointing, a model does not keep keys and values.
        if len(prompts) < 2 or shared < WORTH_SHARING or self.backbone.model.training:
            return 0
        length = self.backbone.layers.check_length(longest)
        if length not in self._shares:
            self._shares[length] = self._sharing_is_exact(max(WORTH_SHARING, length))
        return shared if self._shares[length] else 0

    def _sharing_is_exact(self, shared: int) -> bool:
        tokens = example_tokens(self.backbone, shared + 8, 11, 3)
        prompts = [tokens[:-6], [*tokens[:-8], *tokens[:5]]]
        layouts = [tree_layout([tokens[1:4], tokens[2:3]])] * 2
        return agree(
            self.backbone,
            lambda: self._read_trees(prompts, layouts, shared),
            lambda: self._read_trees(prompts, layouts, 0),
        )

    def _read_trees(self, prompts: Sequence[Tokens], layouts: Sequence[Layout], shared: int) -> list[Tensor]:
        """Return the states (num_rows, hidden) of each tree; all prompts share their first ``shared`` tokens."""
        before = None
        if shared:
            before = self.backbone.remember(torch.tensor([prompts[0][:shared]], device=self.backbone.device))
            prompts = [prompt[shared:] for prompt in prompts]
        lengths = [len(prompt) + len(layout.tokens) - 1 for prompt, layout in zip(prompts, layouts, strict=True)]
        device, rows = self.backbone.device, dict[int, Tensor]()
        for batch in batches(lengths, *Batching.for_device(device)):
            batch_prompts, batch_layouts = [prompts[i] for i in batch], [layouts[i] for i in batch]
            tokens, positions, allowed = _tree_batch(batch_prompts, batch_layouts)
            columns = positions
            if before is not None:
                positions = positions + shared
                columns = torch.cat([torch.arange(shared).expand(len(batch), -1), positions], dim=1)
                allowed = F.pad(allowed, (shared, 0), value=True)
            positions, columns = positions.to(device), columns.to(device)
            masks = self.backbone.layers.masks(allowed.to(device), positions, columns)
            hidden = self.backbone.read(
                tokens.to(device), self.backbone.attention_mask(masks), positions, before
            )  # (batch, length, hidden)
            roots = [len(prompt) - 1 for prompt in batch_prompts]
            counts = [len(layout.tokens) for layout in batch_layouts]
            rows.update(zip(batch, cut(hidden, roots, counts), strict=True))
        return [rows[index] for index in range(len(prompts))]

    def plain(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Read each candidate with its prompt in a separate row."""

        def read(prompts: list[list[int]], runs: list[tuple[int, ...]]) -> list[Tensor]:
            lines = self._read_lines([[*prompt, *run] for prompt, run in zip(prompts, runs, strict=True)])
            return [states[-1 - len(run) :] for states, run in zip(lines, runs, strict=True)]

        return _by_run(questions, read)

    def states(self, prompts: Sequence[Tokens]) -> Tensor:
        """Return the final state of each prompt, float32 (num_prompts, hidden); identical prompts are read once."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        last = {p: one[-1] for p, one in zip(distinct, self._read_lines(distinct), strict=True)}
        return torch.stack([last[tuple(prompt)] for prompt in prompts]).float()

    def _read_lines(self, lines: Sequence[Tokens]) -> list[Tensor]:
        """Return the states (length, hidden) of each text."""
        device, states, lengths = self.backbone.device, dict[int, Tensor](), list(map(len, lines))
        for batch in batches(lengths, *Batching.for_device(device)):
            tokens = pad_sequence([torch.tensor(lines[index]) for index in batch], batch_first=True)
            hidden = self.backbone.read(tokens.to(device), None, None)
            counts = [lengths[index] for index in batch]
            states.update(zip(batch, cut(hidden, [0] * len(batch), counts), strict=True))
        return [states[index] for index in range(len(lines))]


def _by_run(
    questions: Sequence[ScoringQuestion], read: Callable[[list[list[int]], list[tuple[int, ...]]], list[Tensor]]
) -> list[RowStates]:
    """Return the questions' states; ``read`` returns the states (1 + len(run), hidden) for each prompt and run."""
    runs = [runs_of(question.candidates) for question in questions]
    pairs = list(zip(questions, runs, strict=True))
    prompts = [question.prompt for question, its_runs in pairs for _ in its_runs]
    states = iter(read(prompts, [run for its_runs in runs for run in its_runs]))
    return [
        RowStates(torch.cat([next(states) for _ in its_runs]), run_targets(question.candidates, its_runs))
        for question, its_runs in pairs
    ]


def _tree_batch(prompts: Sequence[Tokens], layouts: Sequence[Layout]) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids and positions, int64 (batch, length), and the mask, bool (batch, 1, length, length)."""
    lines = [torch.tensor([*prompt, *layout.tokens[1:]]) for prompt, layout in zip(prompts, layouts, strict=True)]
    tokens = pad_sequence(lines, batch_first=True)
    length = tokens.shape[1]
    positions = torch.zeros_like(tokens)
    allowed = torch.ones(length, length, dtype=torch.bool).tril().repeat(len(lines), 1, 1, 1)
    for index, (prompt, layout) in enumerate(zip(prompts, layouts, strict=True)):
        start, stop = len(prompt), len(prompt) + len(layout.tokens) - 1
        positions[index, :start] = torch.arange(start)
        positions[index, start:stop] = torch.tensor(layout.depths[1:], dtype=torch.long) + start - 1
        allowed[index, 0, start:stop, start:stop] = layout.visible[1:, 1:]
    return tokens, positions, allowed


@dataclass
class EncoderDecoderReader:
    """Reads questions with an encoder-decoder model whose decoder starts with ``start_token``."""

    backbone: Backbone
    start_token: int
    encoded: dict[tuple[int, ...], Tensor] | None = field(default=None, init=False)
    """Encoder states of the last call's prompts, reused by calls without gradients; None if not kept."""

    def packed(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Decode all candidates of a prompt in one row."""
        layouts = layouts_of(questions, partial(decoder_layout, start_token=self.start_token))
        lines, visible = [layout.tokens for layout in layouts], [layout.visible for layout in layouts]
        rows = self._decode([question.prompt for question in questions], lines, visible)
        return [RowStates(one, layout.targets) for one, layout in zip(rows, layouts, strict=True)]

    def plain(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Decode each candidate in a separate row; prompts are still encoded once."""
        return _by_run(
            questions, lambda prompts, runs: self._decode(prompts, [[self.start_token, *run] for run in runs])
        )

    def states(self, prompts: Sequence[Tokens]) -> Tensor:
        """Return the decoder's first state for each prompt, float32 (num_prompts, hidden)."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        hidden = self._decode(distinct, [[self.start_token]] * len(distinct))
        first = {prompt: states[0] for prompt, states in zip(distinct, hidden, strict=True)}
        return torch.stack([first[tuple(prompt)] for prompt in prompts]).float()

    def _decode(
        self, prompts: Sequence[Tokens], lines: Sequence[Tokens], visible: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Return the decoder's states (length, hidden) for each prompt's token sequence."""
        # ``visible``: one bool mask (length, length) per sequence, True at (i, j) if i attends to j. None means causal.
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
        """Yield batches of prompts by length and, if rows are packed, by the number of decoder rows (``counts``)."""
        batching = Batching.for_device(self.backbone.device)
        if counts is None:
            yield from batches(lengths, *batching)
            return
        # The decoder reads few rows, so batches are large: padding only adds keys to the cross-attention.
        for batch in batches(lengths, TOKENS_AT_ONCE, max_waste=0.1):
            sizes = [counts[index] for index in batch]
            for part in batches(sizes, TOKENS_AT_ONCE, float("inf"), batching.max_pairs):
                yield [batch[place] for place in sorted(part)]

    def _encode(self, prompts: Sequence[Tokens]) -> list[Tensor]:
        """Return the encoder's states (length, hidden) of each prompt; identical prompts are encoded once."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        kept = None if torch.is_grad_enabled() else self.encoded
        states = {prompt: kept[prompt] for prompt in distinct if prompt in kept} if kept else {}
        new = [prompt for prompt in distinct if prompt not in states]
        for batch in batches([len(prompt) for prompt in new], *Batching.for_device(self.backbone.device)):
            batch_prompts = [new[index] for index in batch]
            hidden = self.backbone.encode(*padded(batch_prompts, self.backbone.device))
            parts = cut(hidden, [0] * len(batch), list(map(len, batch_prompts)))
            states.update(zip(batch_prompts, parts, strict=True))
        if kept is not None:
            self.encoded = states
        return [states[tuple(prompt)] for prompt in prompts]
