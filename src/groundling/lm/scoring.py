"""log P(candidate | prompt) for many candidates, each prompt computed once.

Lamorel repeats the prompt (or its encoder states) for every candidate and takes logits at every position. Here a
causal model reads ``prompt + tree of candidates`` in one pass under a 4D mask, and what all prompts begin with (GLAM's
list of actions, say) only once; an encoder-decoder encodes the prompt once and decodes all candidates side by side in
one row under a block mask; the vocabulary is touched only at the rows that predict a candidate token. Where that is not
exact (recurrent states, positions that cannot be given, attention that takes no such mask) candidates are read after
copies of what a causal model remembers of the prompt. Which way is exact follows from the model's layers and from a
trial; where neither is, each candidate is read with its whole prompt, and a warning says why. Task: GLAM (arXiv
2302.02662) and its scorer Lamorel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache

from groundling.lm.backbone import Backbone
from groundling.lm.packing import (
    Layout,
    ScoringQuestion,
    Tokens,
    as_chains,
    as_lines,
    as_runs,
    as_tree,
    batches,
    runs_of,
    split_wide,
)
from groundling.lm.trials import Way, agree, find_way, learns_alike, words_of

# Prompts up to these many tokens go through together, so that a long call does not hold every state at once.
_TOKENS_AT_ONCE = 32_768
# More candidate rows than this are read in several passes: their mask grows with the square.
_MAX_ROWS = 512
# Fewer tokens that all prompts begin with are not worth a pass of their own.
_WORTH_SHARING = 16
# Logits held at once: 64 Mi numbers, 256 MiB in float32.
_MAX_LOGITS = 2**26


@dataclass(frozen=True)
class CandidateScores:
    """What a policy needs of one pass.

    `log_probs`: float32 (num_prompts, max_candidates), log P(candidate | prompt), -inf where `mask` is False.
    `mask`: bool (num_prompts, max_candidates), True where there is a candidate.
    `state`: float32 (num_prompts, hidden_size), the hidden state of the prompt's last token (causal) or of the first
    decoder position (encoder-decoder), after the final norm: what value and action heads read.
    """

    log_probs: Tensor
    mask: Tensor
    state: Tensor

    @classmethod
    def of(cls, counts: Sequence[int], log_probs: Tensor, state: Tensor) -> CandidateScores:
        """From those of all candidates in one row, of which each prompt has so many."""
        mask = torch.arange(max(counts, default=0)) < torch.tensor(counts, dtype=torch.long)[:, None]
        mask = mask.to(log_probs.device)
        padded = torch.full(mask.shape, -torch.inf, device=log_probs.device)
        return cls(padded.masked_scatter(mask, log_probs), mask, state)


_Asked = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


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
class _Answer:
    """Final hidden states of a question's rows, (num_rows, hidden), root first; targets as in `Layout`."""

    rows: Tensor
    targets: Tensor


@dataclass
class Scorer:
    """Scores candidates with one model."""

    backbone: Backbone
    start_token: int
    # Of what was tried, by `Layers.least`.
    _ways: dict[int, Way] = field(default_factory=dict, init=False)
    _learns: dict[int, bool] = field(default_factory=dict, init=False)
    _shares: dict[int, bool] = field(default_factory=dict, init=False)
    _told: set[tuple[str, int]] = field(default_factory=set, init=False)

    def __call__(self, questions: Sequence[ScoringQuestion], raw: bool = False) -> tuple[Tensor, Tensor]:
        """Scores of all candidates in one row, and the state of each prompt.

        Args:
            questions: Prompts with at least one candidate each.
            raw: Sums of unnormalised logits instead of log-probabilities (for the GLAM compatibility option).

        Returns:
            Float32 (total number of candidates,), question by question; float32 (num_questions, hidden).
        """
        scores, states = self.token_scores(questions, raw)
        return sums_of(
            [len(candidate) for question in questions for candidate in question.candidates], scores
        ), states

    def token_scores(self, questions: Sequence[ScoringQuestion], raw: bool = False) -> tuple[Tensor, Tensor]:
        """The same of every token of every candidate; what is asked twice is computed once.

        Returns:
            Float32 (total number of tokens,), question by question, candidate by candidate; float32 (num_questions,
            hidden).
        """
        asked = [(tuple(prompt), tuple(map(tuple, candidates))) for prompt, candidates in questions]
        distinct = dict(zip(asked, questions, strict=True))
        results: dict[_Asked, tuple[Tensor, Tensor]] = {}
        keys = list(distinct)
        for group in batches([len(prompt) for prompt, _ in keys], _TOKENS_AT_ONCE, float("inf")):
            group_keys = [keys[index] for index in group]
            results.update(
                zip(group_keys, self._score_group([distinct[key] for key in group_keys], raw), strict=True)
            )
        return torch.cat([results[key][0] for key in asked]), torch.stack([results[key][1] for key in asked])

    def _score_group(self, questions: Sequence[ScoringQuestion], raw: bool) -> list[tuple[Tensor, Tensor]]:
        parts = [self._parts(question) for question in questions]
        narrow = [
            ScoringQuestion(question.prompt, [question.candidates[index] for index in part] or [[]])
            for question, own_parts in zip(questions, parts, strict=True)
            for part in own_parts
        ]
        answers = self._answers(narrow)
        scores = self.scores_of(answers, raw)
        results = []
        first = 0
        for question, own_parts in zip(questions, parts, strict=True):
            part_scores = scores[first : first + len(own_parts)]
            question_scores = (
                part_scores[0]
                if len(own_parts) == 1
                else _in_order(question.candidates, own_parts, part_scores)
            )
            results.append((question_scores, answers[first].rows[0].float()))
            first += len(own_parts)
        return results

    def _parts(self, question: ScoringQuestion) -> list[list[int]]:
        """Indices of candidates that are read together; the first part's are read as the prompt is alone."""
        prompt, candidates = question
        if self.backbone.is_encoder_decoder or not self.backbone.layers.turns:
            return split_wide(candidates, _MAX_ROWS)
        stage = self.backbone.layers.stage
        by_stage: dict[int, list[int]] = {stage(len(prompt)): []}
        for index, candidate in enumerate(candidates):
            by_stage.setdefault(stage(len(prompt) + max(1, len(candidate)) - 1), []).append(index)
        return [
            [indices[place] for place in part]
            for indices in by_stage.values()
            for part in split_wide([candidates[index] for index in indices], _MAX_ROWS)
        ]

    def scores_of(self, answers: Sequence[_Answer], raw: bool) -> list[Tensor]:
        """Float32 (its number of targets,) of each answer."""
        rows = torch.cat([answer.rows for answer in answers])  # (num_rows, hidden)
        targets, first_row = [], 0
        for answer in answers:
            targets.append(answer.targets + torch.tensor([[first_row], [0]]))
            first_row += len(answer.rows)
        row, token = torch.cat(targets, dim=1).to(rows.device)  # each (num_targets,)
        scores = self._scores_at(rows, row, token, raw)
        return list(scores.split([answer.targets.shape[1] for answer in answers]))

    def _scores_at(self, rows: Tensor, row: Tensor, token: Tensor, raw: bool) -> Tensor:
        """Float32 (num_targets,) log-probability of each `token` at its `row` of `rows` (num_rows, hidden)."""
        some_rows = max(1, _MAX_LOGITS // self.backbone.model.config.get_text_config().vocab_size)
        if not len(token):
            return rows[
                :0, 0
            ].float()  # of the graph, so that a loss of nothing but certainties has gradients: 0
        scores = torch.zeros(len(token), device=rows.device)
        for first in range(0, len(rows), some_rows):
            logits = self.backbone.logits(rows[first : first + some_rows]).float()  # (some_rows, vocabulary)
            here = ((row >= first) & (row < first + some_rows)).nonzero()[:, 0]
            local = row[here] - first
            picked = logits[local, token[here]]
            scores = scores.index_put((here,), picked if raw else picked - logits.logsumexp(-1)[local])
        return scores

    # How the hidden states are got

    def _answers(self, questions: Sequence[ScoringQuestion]) -> list[_Answer]:
        groups: dict[tuple[Way, int], list[int]] = {}
        for index, question in enumerate(questions):
            length = self._length(question)
            group = self.way_at(length), self.backbone.layers.stage(length)
            groups.setdefault(group, []).append(index)
        answers: dict[int, _Answer] = {}
        for (way, _), indices in groups.items():
            group_answers = self._answer[way]([questions[index] for index in indices])
            answers.update(zip(indices, group_answers, strict=True))
        return [answers[index] for index in range(len(questions))]

    @property
    def _answer(self) -> dict[Way, Callable[[Sequence[ScoringQuestion]], list[_Answer]]]:
        return {
            "tree": self.answer_packed,
            "after": partial(self.answer_after, one_by_one=False),
            "steps": partial(self.answer_after, one_by_one=True),
            "lines": self.answer_plain,
        }

    def _length(self, question: ScoringQuestion) -> int:
        """How many tokens the longest line has that a causal model, or the decoder, would read."""
        given = 1 if self.backbone.is_encoder_decoder else len(question.prompt)
        return given + max(1, *map(len, question.candidates)) - 1

    def way_at(self, length: int) -> Way:
        """How candidates are read whose lines have that length at most; tried once, and told where it is slow."""
        least = self.backbone.layers.least(length)
        if least not in self._ways:
            self._ways[least] = self._find_way(least)
        way = self._ways[least]
        if way not in ("after", "steps") or not torch.is_grad_enabled():
            return way
        if self.backbone.model.training:  # checkpointed gradients, for which nothing is remembered
            return self._slow("gradient checkpointing forgets what was read", least)
        if least not in self._learns:
            self._learns[least] = learns_alike(self.backbone, self.start_token, self._scores_by(way), least)
        return (
            way
            if self._learns[least]
            else self._slow("what it remembers of a prompt has no gradients", least)
        )

    def _find_way(self, least: int) -> Way:
        layers = self.backbone.layers
        ways: list[Way] = ["lines"]
        if not self.backbone.is_encoder_decoder:
            ways = ["after", "steps", "lines"]
        if not layers.others and not (self.backbone.is_encoder_decoder and least):
            ways.insert(0, "tree")
        way, why = find_way(
            self.backbone, self.start_token, {way: self._scores_by(way) for way in ways}, least
        )
        if way != "lines":
            return way
        if layers.others:
            why = f"layers of the kind {', '.join(layers.others)}; {why}"
        self._ways[least] = way
        return self._slow(why, least)

    def _slow(self, why: str, least: int) -> Way:
        """Tell once that each candidate is read with its prompt."""
        if (why, least) not in self._told:
            self._told.add((why, least))
            name, longer = type(self.backbone.model).__name__, f" of {least} tokens or more" if least else ""
            whole = "" if self.backbone.is_encoder_decoder else " with its whole prompt"
            warnings.warn(
                f"{name} cannot read several candidates{longer} in one row exactly ({why}): each is read on its "
                f"own{whole}, which is slower",
                stacklevel=2,
            )
        return "lines"

    def _scores_by(self, way: Way) -> Callable[[list[ScoringQuestion]], Tensor]:
        def scores(questions: list[ScoringQuestion]) -> Tensor:
            lengths = [len(candidate) for question in questions for candidate in question.candidates]
            return sums_of(lengths, torch.cat(self.scores_of(self._answer[way](questions), raw=False)))

        return scores

    def answer_packed(self, questions: Sequence[ScoringQuestion]) -> list[_Answer]:
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
        return [
            _Answer(question_rows, layout.targets)
            for question_rows, layout in zip(rows, layouts, strict=True)
        ]

    def _layout(self, candidates: Sequence[Tokens]) -> Layout:
        return (
            as_chains(candidates, self.start_token)
            if self.backbone.is_encoder_decoder
            else as_tree(candidates)
        )

    def _read_packed(self, prompts: Sequence[Tokens], layouts: Sequence[Layout]) -> list[Tensor]:
        shared = _begin_alike(prompts)
        longest = max(len(p) + max(layout.depths) for p, layout in zip(prompts, layouts, strict=True))
        return self.read_trees(prompts, layouts, shared if self._can_share(shared, longest) else 0)

    def _can_share(self, shared: int, longest: int) -> bool:
        """Whether the first tokens of all prompts can be read once; tried once for each of `Layers.least`."""
        layers = self.backbone.layers
        # Gradient checkpointing, which is what the training mode means here, forgets what layers remember.
        if (
            shared < _WORTH_SHARING
            or self.backbone.model.training
            or layers.stage(shared) != layers.stage(longest)
        ):
            return False
        least = layers.least(longest)
        if least not in self._shares:
            self._shares[least] = self._sharing_is_exact(least)
        return self._shares[least]

    def _sharing_is_exact(self, least: int) -> bool:
        shared = max(_WORTH_SHARING, least)
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
        if shared >= _WORTH_SHARING:
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
        # The decoder's rows are few: batches here are wide, and padding costs only the cross-attention's keys.
        for batch in batches([len(state) for state in states], _TOKENS_AT_ONCE, max_waste=0.1):
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

    def answer_after(self, questions: Sequence[ScoringQuestion], one_by_one: bool) -> list[_Answer]:
        """Each prompt once, and its candidates after copies of what the model remembers of it."""
        runs = [runs_of(question.candidates) for question in questions]
        widest = max(len(question_runs) for question_runs in runs)
        lengths = [len(question.prompt) for question in questions]
        answers: dict[int, _Answer] = {}
        # Prompts of one length at a time: a state that has read padding would be another one.
        for batch in self._batches(lengths, copies=widest, max_waste=0.0):
            tokens = torch.tensor([questions[index].prompt for index in batch], device=self.backbone.device)
            hidden, memory = self.backbone.begin(tokens)
            after = self._go_on(memory, tokens.shape[1], [runs[index] for index in batch], one_by_one)
            for place, index in enumerate(batch):
                rows = [hidden[place, -1:], *(next(after) for run in runs[index] if run)]
                answers[index] = _Answer(torch.cat(rows), as_runs(questions[index].candidates, runs[index]))
        return [answers[index] for index in range(len(questions))]

    def _go_on(
        self,
        memory: dict[str, Cache],
        length: int,
        runs: Sequence[Sequence[tuple[int, ...]]],
        one_by_one: bool,
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

    def answer_plain(self, questions: Sequence[ScoringQuestion]) -> list[_Answer]:
        """Each candidate on a row of its own, for models that cannot pack; encoder states are still shared."""
        owners = [index for index, question in enumerate(questions) for _ in question.candidates]
        lines = [list(candidate[:-1]) for question in questions for candidate in question.candidates]
        prompts = [question.prompt for question in questions]
        if self.backbone.is_encoder_decoder:
            hidden = self._decode_lines(prompts, owners, [[self.start_token, *line] for line in lines])
        else:
            hidden = self._read_lines(
                [prompts[owner] + line for owner, line in zip(owners, lines, strict=True)]
            )
        answers = []
        first = 0
        for question in questions:
            mine = [
                states[len(states) - max(1, len(candidate)) :]
                for states, candidate in zip(hidden[first:], question.candidates, strict=False)
            ]
            answers.append(_Answer(torch.cat(mine), as_lines(question.candidates)))
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
        by_stage: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            by_stage.setdefault(self.backbone.layers.stage(length), []).append(index)
        return [
            [indices[place] for place in batch]
            for indices in by_stage.values()
            for batch in self._batches([lengths[index] for index in indices])
        ]

    def _decode_lines(
        self, prompts: Sequence[Tokens], owners: Sequence[int], lines: Sequence[Tokens]
    ) -> list[Tensor]:
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
        states: dict[tuple[int, ...], Tensor] = {}
        for batch in self._batches([len(prompt) for prompt in distinct]):
            tokens, mask = _padded([torch.tensor(distinct[index]) for index in batch])
            hidden = self.backbone.encode(tokens.to(self.backbone.device), mask.to(self.backbone.device))
            counts = [len(distinct[index]) for index in batch]
            batch_prompts = [distinct[index] for index in batch]
            states.update(zip(batch_prompts, _cut(hidden, [0] * len(batch), counts), strict=True))
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

    def _batches(
        self, lengths: Sequence[int], copies: int = 1, max_waste: float | None = None
    ) -> list[list[int]]:
        batching = Batching.for_device(self.backbone.device)
        waste = batching.max_waste if max_waste is None else max_waste
        return batches(lengths, batching.max_tokens // copies, waste, batching.max_pairs / copies)


def sums_of(lengths: Sequence[int], values: Tensor) -> Tensor:
    """Float32 (len(lengths),): the sum of the first `lengths[0]` values, of the `lengths[1]` after them, and so on."""
    owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    total = torch.zeros(len(lengths), device=values.device)
    return total.index_add(0, owners.to(values.device), values)


def _in_order(candidates: Sequence[Tokens], parts: Sequence[list[int]], scores: Sequence[Tensor]) -> Tensor:
    """Token scores of all candidates, of which ``parts`` have been scored apart."""
    indices = [index for part in parts for index in part]
    pieces = torch.cat(list(scores)).split([len(candidates[index]) for index in indices])
    of = dict(zip(indices, pieces, strict=True))
    return torch.cat([of[index] for index in range(len(candidates))])


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
    lines = [
        torch.tensor([*prompt, *layout.tokens[1:]]) for prompt, layout in zip(prompts, layouts, strict=True)
    ]
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
