"""Final hidden states of prompts and their candidates: all in one row, candidates after the prompt, or each with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache

from groundling.lm.backbone import Backbone
from groundling.lm.read.exactness import agree, words_of
from groundling.lm.read.packing import (
    Layout,
    ScoringQuestion,
    Tokens,
    as_chains,
    as_lines,
    as_runs,
    as_tree,
    batches,
    runs_of,
)

# Prompts up to these many tokens go through together, so that a long call does not hold every state at once.
TOKENS_AT_ONCE = 32_768
# Fewer tokens that prompts begin with, or that several texts go on from, are not worth being read apart.
WORTH_SHARING = 16


@dataclass(frozen=True)
class Batching:
    """How much goes through the body at once, and how much padding is worth it."""

    max_tokens: int
    max_waste: float
    max_pairs: float

    @classmethod
    def for_device(cls, device: torch.device) -> Batching:
        """On CPU a single prompt already fills the cores; an accelerator wants more rows and minds padding less.

        The attention of 2**19 pairs takes 16 MB in each layer of 8 heads. From 32 MB on Linux gives such memory back
        and takes it anew each time, which doubles the time.
        """
        return cls(4096, 0.03, 2**19) if device.type == "cpu" else cls(32_768, 0.25, float("inf"))


@dataclass(frozen=True)
class RowStates:
    """Final hidden states of a question's rows, (num_rows, hidden), root first; targets as in `Layout`."""

    rows: Tensor
    targets: Tensor


@dataclass
class Reader:
    """Reads with one model; `start_token` is what a decoder reads first."""

    backbone: Backbone
    start_token: int
    encoded: dict[tuple[int, ...], Tensor] | None = field(default=None, init=False)
    """The encoder's states of the last call's prompts, for calls without gradients; None: they are not kept."""
    # Of what was tried, by `Layers.least`.
    _shares: dict[int, bool] = field(default_factory=dict, init=False)

    def packed(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """All candidates of a prompt in one pass with it (causal) or in one decoder row (encoder-decoder)."""
        known: dict[tuple[tuple[int, ...], ...], Layout] = {}
        layouts = []
        for question in questions:
            key = tuple(map(tuple, question.candidates))
            if key not in known:
                known[key] = self._layout(question.candidates)
            layouts.append(known[key])
        if self.backbone.is_encoder_decoder:
            rows = self._decode_packed([question.prompt for question in questions], layouts)
        else:
            rows = self._read_packed([question.prompt for question in questions], layouts)
        return [RowStates(question_rows, layout.targets) for question_rows, layout in zip(rows, layouts, strict=True)]

    def _layout(self, candidates: Sequence[Tokens]) -> Layout:
        return as_chains(candidates, self.start_token) if self.backbone.is_encoder_decoder else as_tree(candidates)

    def _read_packed(self, prompts: Sequence[Tokens], layouts: Sequence[Layout]) -> list[Tensor]:
        shared = _begin_alike(prompts)
        longest = max(len(p) + max(layout.depths) for p, layout in zip(prompts, layouts, strict=True))
        return self.read_trees(prompts, layouts, shared if self._can_share(shared, longest) else 0)

    def _can_share(self, shared: int, longest: int) -> bool:
        """Whether the first tokens of all prompts can be read once; tried once for each of `Layers.least`."""
        layers = self.backbone.layers
        # Gradient checkpointing, which is what the training mode means here, forgets what layers remember.
        if shared < WORTH_SHARING or self.backbone.model.training or layers.stage(shared) != layers.stage(longest):
            return False
        least = layers.least(longest)
        if least not in self._shares:
            self._shares[least] = self._sharing_is_exact(least)
        return self._shares[least]

    def _sharing_is_exact(self, least: int) -> bool:
        shared = max(WORTH_SHARING, least)
        words = words_of(self.backbone, shared + 8, 11, 3)
        prompts = [words[:-6], [*words[:-8], *words[:5]]]
        layouts = [as_tree([words[1:4], words[2:3]])] * 2
        return agree(
            self.backbone,
            lambda: torch.cat(self.read_trees(prompts, layouts, 0)).float(),
            lambda: torch.cat(self.read_trees(prompts, layouts, shared)).float(),
        )

    def read_trees(self, prompts: Sequence[Tokens], layouts: Sequence[Layout], shared: int) -> list[Tensor]:
        """Hidden states (num_rows, hidden) of each prompt's tree, the first `shared` tokens of all read once."""
        before = None
        if shared >= WORTH_SHARING:
            before = self.backbone.remember(torch.tensor([prompts[0][:shared]], device=self.backbone.device))
            prompts = [prompt[shared:] for prompt in prompts]
        lengths = [len(prompt) + layout.num_rows - 1 for prompt, layout in zip(prompts, layouts, strict=True)]
        rows: dict[int, Tensor] = {}
        for batch in self._batches(lengths):
            batch_prompts, batch_layouts = [prompts[i] for i in batch], [layouts[i] for i in batch]
            tokens, positions, allowed = _tree_batch(batch_prompts, batch_layouts)
            columns = positions
            if before is not None:
                positions = positions + shared
                earlier = torch.arange(shared).expand(len(positions), -1)
                columns = torch.cat([earlier, positions], dim=1)
                allowed = F.pad(allowed, (shared, 0), value=True)
            device = self.backbone.device
            positions, columns = positions.to(device), columns.to(device)
            masks = self.backbone.layers.masks(allowed.to(device), positions, columns)
            hidden = self.backbone.read(
                tokens.to(device), self.backbone.additive(masks), positions, before
            )  # (batch, length, hidden)
            roots = [len(prompts[index]) - 1 for index in batch]
            counts = [layout.num_rows for layout in batch_layouts]
            rows.update(zip(batch, _cut(hidden, roots, counts), strict=True))
        return [rows[index] for index in range(len(prompts))]

    def _decode_packed(self, prompts: Sequence[Tokens], layouts: Sequence[Layout]) -> list[Tensor]:
        states = self._encode(prompts)
        rows: dict[int, Tensor] = {}
        for batch in self._decoder_batches(list(map(len, states)), [layout.num_rows for layout in layouts]):
            batch_layouts = [layouts[index] for index in batch]
            tokens = pad_sequence([torch.tensor(layout.tokens) for layout in batch_layouts], batch_first=True)
            allowed = torch.eye(tokens.shape[1], dtype=torch.bool).repeat(len(batch), 1, 1, 1)
            for place, layout in enumerate(batch_layouts):
                allowed[place, 0, : layout.num_rows, : layout.num_rows] = layout.visible
            padded, mask = _padded([states[index] for index in batch])
            allowed = self.backbone.additive(allowed.to(padded.device))
            hidden = self.backbone.decode(tokens.to(padded.device), padded, mask, allowed)
            counts = [layout.num_rows for layout in batch_layouts]
            rows.update(zip(batch, _cut(hidden, [0] * len(batch), counts), strict=True))
        return [rows[index] for index in range(len(prompts))]

    def _decoder_batches(self, lengths: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
        """Indices of prompts of such lengths that are decoded together, each with so many rows."""
        most_pairs = Batching.for_device(self.backbone.device).max_pairs
        groups: list[list[int]] = []
        # The decoder's rows are few: batches here are wide, and padding costs only the cross-attention's keys.
        for batch in batches(lengths, TOKENS_AT_ONCE, max_waste=0.1):
            widest = max(counts[index] for index in batch)
            rows = len(batch) * widest
            if rows <= TOKENS_AT_ONCE and rows * widest <= most_pairs:
                groups.append(batch)
                continue
            parts = batches([counts[index] for index in batch], TOKENS_AT_ONCE, float("inf"), most_pairs)
            groups += [[batch[place] for place in part] for part in parts]
        return groups

    def after(self, questions: Sequence[ScoringQuestion], one_by_one: bool) -> list[RowStates]:
        """Each prompt once, and its candidates after copies of what the model remembers of it."""
        runs = [runs_of(question.candidates) for question in questions]
        widest = max(len(question_runs) for question_runs in runs)
        lengths = [len(question.prompt) for question in questions]
        answers: dict[int, RowStates] = {}
        # Prompts of one length at a time: a state that has read padding would be another one.
        for batch in self._batches(lengths, copies=widest, max_waste=0.0):
            tokens = torch.tensor([questions[index].prompt for index in batch], device=self.backbone.device)
            hidden, memory = self.backbone.begin(tokens)
            after = self._go_on(memory, tokens.shape[1], [runs[index] for index in batch], one_by_one)
            for place, index in enumerate(batch):
                rows = [hidden[place, -1:], *(next(after) for run in runs[index] if run)]
                answers[index] = RowStates(torch.cat(rows), as_runs(questions[index].candidates, runs[index]))
        return [answers[index] for index in range(len(questions))]

    def _go_on(
        self, memory: dict[str, Cache], length: int, runs: Sequence[Sequence[tuple[int, ...]]], one_by_one: bool
    ) -> Iterator[Tensor]:
        """States (length of a run, hidden) of each text that is remembered, of each of its runs that is not empty."""
        rows = [(owner, run) for owner, text_runs in enumerate(runs) for run in text_runs if run]
        if not rows:
            return iter(())
        tokens = pad_sequence([torch.tensor(run) for _, run in rows], batch_first=True)
        owners = torch.tensor([owner for owner, _ in rows])
        device = self.backbone.device
        hidden = self.backbone.go_on(memory, length, owners.to(device), tokens.to(device), one_by_one)
        return iter(_cut(hidden, [0] * len(rows), [len(run) for _, run in rows]))

    def plain(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Each candidate on a row of its own, for models that cannot pack; encoder states are still shared."""
        owners = [index for index, question in enumerate(questions) for _ in question.candidates]
        lines = [list(candidate[:-1]) for question in questions for candidate in question.candidates]
        prompts = [question.prompt for question in questions]
        if self.backbone.is_encoder_decoder:
            hidden = self._decode_lines(prompts, owners, [[self.start_token, *line] for line in lines])
        else:
            hidden = self._read_lines([prompts[owner] + line for owner, line in zip(owners, lines, strict=True)])
        answers = []
        first = 0
        for question in questions:
            rows = [
                states[len(states) - max(1, len(candidate)) :]
                for states, candidate in zip(hidden[first:], question.candidates, strict=False)
            ]
            answers.append(RowStates(torch.cat(rows), as_lines(question.candidates)))
            first += len(question.candidates)
        return answers

    def _read_lines(self, lines: Sequence[Tokens]) -> list[Tensor]:
        """Final hidden states (length, hidden) of each line, read on its own."""
        states: dict[int, Tensor] = {}
        for batch in self._line_batches(list(map(len, lines))):
            tokens = pad_sequence([torch.tensor(lines[index]) for index in batch], batch_first=True)
            hidden = self.backbone.read(tokens.to(self.backbone.device), None, None)
            counts = [len(lines[index]) for index in batch]
            states.update(zip(batch, _cut(hidden, [0] * len(batch), counts), strict=True))
        return [states[index] for index in range(len(lines))]

    def _line_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Padding would make a text as long as its batch, so that none of another stage can be in it."""
        return [
            [indices[place] for place in batch]
            for indices in self.backbone.layers.by_stage(lengths)
            for batch in self._batches([lengths[index] for index in indices])
        ]

    def _decode_lines(self, prompts: Sequence[Tokens], owners: Sequence[int], lines: Sequence[Tokens]) -> list[Tensor]:
        encoded = self._encode(prompts)
        states: dict[int, Tensor] = {}
        for batch in self._batches([len(encoded[owner]) for owner in owners]):
            tokens = pad_sequence([torch.tensor(lines[index]) for index in batch], batch_first=True)
            padded, mask = _padded([encoded[owners[index]] for index in batch])
            hidden = self.backbone.decode(tokens.to(padded.device), padded, mask, None)
            counts = [len(lines[index]) for index in batch]
            states.update(zip(batch, _cut(hidden, [0] * len(batch), counts), strict=True))
        return [states[index] for index in range(len(lines))]

    def _encode(self, prompts: Sequence[Tokens]) -> list[Tensor]:
        """The encoder's states (length, hidden) of each prompt; equal prompts are encoded once."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        kept = None if torch.is_grad_enabled() else self.encoded
        states = {prompt: kept[prompt] for prompt in distinct if prompt in kept} if kept else {}
        new = [prompt for prompt in distinct if prompt not in states]
        for batch in self._batches([len(prompt) for prompt in new]):
            tokens, mask = _padded([torch.tensor(new[index]) for index in batch])
            hidden = self.backbone.encode(tokens.to(self.backbone.device), mask.to(self.backbone.device))
            counts = [len(new[index]) for index in batch]
            batch_prompts = [new[index] for index in batch]
            states.update(zip(batch_prompts, _cut(hidden, [0] * len(batch), counts), strict=True))
        if kept is not None:
            self.encoded = states
        return [states[tuple(prompt)] for prompt in prompts]

    def states(self, prompts: Sequence[Tokens]) -> Tensor:
        """Float32 (num_prompts, hidden): each prompt's state when no candidate is scored."""
        distinct = list({tuple(prompt): prompt for prompt in prompts}.values())
        if self.backbone.is_encoder_decoder:
            hidden = self._decode_lines(distinct, range(len(distinct)), [[self.start_token]] * len(distinct))
        else:
            hidden = self._read_lines(distinct)
        last = {tuple(prompt): states[-1] for prompt, states in zip(distinct, hidden, strict=True)}
        return torch.stack([last[tuple(prompt)] for prompt in prompts]).float()

    def _batches(self, lengths: Sequence[int], copies: int = 1, max_waste: float | None = None) -> list[list[int]]:
        batching = Batching.for_device(self.backbone.device)
        waste = batching.max_waste if max_waste is None else max_waste
        return batches(lengths, batching.max_tokens // copies, waste, batching.max_pairs / copies)


def _begin_alike(prompts: Sequence[Tokens]) -> int:
    """How many tokens all prompts begin with, leaving each at least one of its own; 0 for a single prompt."""
    if len(prompts) < 2:
        return 0
    first, last = min(map(list, prompts)), max(map(list, prompts))  # whatever these two share, all do
    shortest = min(map(len, prompts)) - 1
    return next((i for i in range(shortest) if first[i] != last[i]), shortest)


def _padded(sequences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Sequences (length, ...) as one batch (batch, longest, ...), and its 0/1 int64 mask (batch, longest)."""
    flat = torch.cat(sequences)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    places = torch.arange(int(lengths.max()))  # (longest,)
    mask = places < lengths[:, None]  # (batch, longest)
    # One look-up: `pad_sequence` copies row by row, and its backward pass copies the whole batch for each row.
    rows = torch.where(mask, places + (lengths.cumsum(0) - lengths)[:, None], 0).to(flat.device)
    padded = F.embedding(rows, flat) if flat.dim() == 2 else flat[rows]
    return padded, mask.long().to(flat.device)


def _cut(hidden: Tensor, starts: Sequence[int], counts: Sequence[int]) -> list[Tensor]:
    """From each line of `hidden` (batch, length, size) the `counts[i]` states from `starts[i]` on.

    One look-up and one split: slices one by one would each cost a batch of zeros in the backward pass.
    """
    length = hidden.shape[1]
    rows = [
        torch.arange(place * length + start, place * length + start + count)
        for place, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return list(F.embedding(torch.cat(rows).to(hidden.device), hidden.flatten(0, 1)).split(list(counts)))


def _tree_batch(prompts: Sequence[Tokens], layouts: Sequence[Layout]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids and positions, int64 (batch, length), and the boolean mask (batch, 1, length, length)."""
    lines = [torch.tensor([*prompt, *layout.tokens[1:]]) for prompt, layout in zip(prompts, layouts, strict=True)]
    tokens = pad_sequence(lines, batch_first=True)
    length = tokens.shape[1]
    positions = torch.zeros_like(tokens)
    allowed = torch.ones(length, length, dtype=torch.bool).tril().repeat(len(lines), 1, 1, 1)
    for index, (prompt, layout) in enumerate(zip(prompts, layouts, strict=True)):
        start, stop = len(prompt), len(prompt) + layout.num_rows - 1
        positions[index, :start] = torch.arange(start)
        positions[index, start:stop] = torch.tensor(layout.depths[1:], dtype=torch.long) + start - 1
        allowed[index, 0, start:stop, start:stop] = layout.visible[1:, 1:]
    return tokens, positions, allowed
