"""log P(candidate | prompt) for many candidates, each prompt computed once.

Lamorel repeats the prompt (or its encoder states) for every candidate and takes logits at every position. Here a
causal model reads ``prompt + tree of candidates`` in one pass under a 4D mask, and what all prompts begin with (GLAM's
list of actions, say) only once; an encoder-decoder encodes the prompt once and decodes all candidates side by side in
one row under a block mask; the vocabulary is touched only at the rows that predict a candidate token. Models for which
that is not exact (positions that cannot be given, recurrent states, attention kernels that take no such mask) are found
by trying it once on a small example, and read one candidate per row instead. Task: GLAM (arXiv 2302.02662) and its
scorer Lamorel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from groundling.lm.backbone import Backbone
from groundling.lm.packing import Layout, Tokens, as_chains, as_lines, as_tree, batches, split_wide

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


class ScoringQuestion(NamedTuple):
    """One prompt and the candidates asked about it, in token ids."""

    prompt: list[int]
    candidates: list[list[int]]


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
    """Scores candidates with one model; `window` is the shortest attention window, where the model has one."""

    backbone: Backbone
    start_token: int
    window: int | None = None
    _packs: bool | None = field(default=None, init=False)
    _shares: bool | None = field(default=None, init=False)

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
        parts = [split_wide(question.candidates, _MAX_ROWS) for question in questions]
        narrow = [
            ScoringQuestion(question.prompt, [question.candidates[index] for index in part])
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
        if self._packs is None:
            self._packs = _packing_is_exact(self)
        packed = [index for index, question in enumerate(questions) if self._packs and self._fits(question)]
        plain = sorted(set(range(len(questions))) - set(packed))
        answers: dict[int, _Answer] = {}
        for indices, method in ((packed, self.answer_packed), (plain, self.answer_plain)):
            if indices:
                group_answers = method([questions[index] for index in indices])
                answers.update(zip(indices, group_answers, strict=True))
        return [answers[index] for index in range(len(questions))]

    def _fits(self, question: ScoringQuestion) -> bool:
        longest = len(question.prompt) + max(map(len, question.candidates))
        return self.window is None or longest <= self.window

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
        if self._shares is None and _begin_alike(prompts) >= _WORTH_SHARING:
            self._shares = _sharing_is_exact(self)
        return self.read_trees(prompts, layouts, _begin_alike(prompts) if self._can_share() else 0)

    def _can_share(self) -> bool:
        # Gradient checkpointing, which is what the training mode means here, forgets what layers remember.
        return bool(self._shares) and not self.backbone.model.training

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
            if before is not None:
                positions = positions + shared
                allowed = F.pad(allowed, (shared, 0), value=True)
            device = self.backbone.device
            hidden = self.backbone.read(
                tokens.to(device), self.backbone.additive(allowed.to(device)), positions.to(device), before
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
        for batch in self._batches([len(line) for line in lines]):
            tokens = pad_sequence([torch.tensor(lines[index]) for index in batch], batch_first=True)
            hidden = self.backbone.read(tokens.to(self.backbone.device), None, None)
            counts = [len(lines[index]) for index in batch]
            states.update(zip(batch, _cut(hidden, [0] * len(batch), counts), strict=True))
        return [states[index] for index in range(len(lines))]

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

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        batching = Batching.for_device(self.backbone.device)
        return batches(lengths, batching.max_tokens, batching.max_waste, batching.max_pairs)


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


@torch.no_grad()
def _packing_is_exact(scorer: Scorer) -> bool:
    """Tries packing on a small example against the model's plain forward; warns where it is not exact."""
    vocabulary = scorer.backbone.model.config.get_text_config().vocab_size
    words = [(7 * index + 5) % vocabulary for index in range(12)]
    candidates = [[words[0]], words[1:3], [words[1], *words[3:5]], words[5:9], []]
    questions = [ScoringQuestion(words[:7], candidates), ScoringQuestion(words[7:11], candidates)]
    tolerance = scorer.backbone.tolerance
    try:
        # Not in the half precision of an autocast around the first call: its rounding would look like an error.
        with torch.autocast(scorer.backbone.device.type, enabled=False):
            expected = torch.cat([_plain_scores(scorer, question) for question in questions])
            scores = torch.cat(scorer.scores_of(scorer.answer_packed(questions), raw=False))
            computed = sums_of(
                [len(candidate) for question in questions for candidate in question.candidates], scores
            )
            if torch.allclose(computed, expected, atol=tolerance, rtol=tolerance / 10):
                return True
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        pass  # a body that refuses positions or a 4D mask in its own way
    warnings.warn(
        f"{type(scorer.backbone.model).__name__} cannot read several candidates in one row exactly; "
        "they are read one per row, which is slower",
        stacklevel=2,
    )
    return False


@torch.no_grad()
def _sharing_is_exact(scorer: Scorer) -> bool:
    """Tries on a small example whether prompts read after what they begin with are the same as read whole."""
    if scorer.window is not None:
        return False
    vocabulary = scorer.backbone.model.config.get_text_config().vocab_size
    words = [(11 * index + 3) % vocabulary for index in range(_WORTH_SHARING + 8)]
    prompts = [words[:-6], [*words[:-8], *words[:5]]]
    layouts = [as_tree([words[1:4], words[2:3]])] * 2
    tolerance = scorer.backbone.tolerance
    try:
        with torch.autocast(scorer.backbone.device.type, enabled=False):
            whole = torch.cat(scorer.read_trees(prompts, layouts, 0)).float()
            shared = torch.cat(scorer.read_trees(prompts, layouts, _WORTH_SHARING)).float()
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return False  # a body that remembers in its own way
    return torch.allclose(whole, shared, atol=tolerance, rtol=tolerance)


def _plain_scores(scorer: Scorer, question: ScoringQuestion) -> Tensor:
    """Float32 (num_candidates,) scores from the model's own forward, one candidate at a time, as a reference."""
    model, device = scorer.backbone.model, scorer.backbone.device
    scores = []
    for candidate in question.candidates:
        prompt = torch.tensor([question.prompt], device=device)
        line = torch.tensor([[*candidate]], dtype=torch.long, device=device)
        if scorer.backbone.is_encoder_decoder:
            start = torch.full((1, 1), scorer.start_token, device=device)
            logits = model(
                input_ids=prompt, decoder_input_ids=torch.cat([start, line], 1), use_cache=False
            ).logits
            logits = logits[0, : len(candidate)]
        else:
            logits = model(input_ids=torch.cat([prompt, line], 1), use_cache=False).logits
            logits = logits[0, len(question.prompt) - 1 : len(question.prompt) - 1 + len(candidate)]
        scores.append(logits.float().log_softmax(-1).gather(1, line[0, :, None]).sum())
    return torch.stack(scores)
