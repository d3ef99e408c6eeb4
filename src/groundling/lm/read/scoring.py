"""Compute log P(candidate | prompt) for many candidates, reading each prompt once (GLAM, arXiv 2302.02662; Lamorel).

Lamorel repeats the prompt, or its encoder states, for every candidate and computes logits at every position. Here, a
causal model reads a prompt and the tree of its candidates in one row under a 4D mask, and the common prefix of all
prompts only once; a decoder reads all candidates of a prompt in one row under a block mask. Logits are computed only
at rows that predict a candidate's token. If this is not exact (because of recurrent states, or because a model does
not accept positions or masks), each candidate is read with its whole prompt, and a warning is shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor

from groundling.errors import ConfigError
from groundling.lm.backbone import Backbone
from groundling.lm.read.batching import (
    MAX_ROWS,
    TOKENS_AT_ONCE,
    RowStates,
    ScoringQuestion,
    Tokens,
    batches,
    split_wide,
)
from groundling.lm.read.causal import CausalReader, EncoderDecoderReader
from groundling.lm.read.exactness import Way, find_way
from groundling.lm.read.prefix_tree import KeyValueMemory
from groundling.lm.read.tree_reader import TreeReader

_MAX_LOGITS = 2**26  # Maximum number of logits in memory: 256 MiB in float32

Normalize = Literal["sum", "token", "word"]


@dataclass(frozen=True)
class CandidateScores:
    """Scores and states of one pass.

    `log_probs`: float32 (num_prompts, max_candidates), log P(candidate | prompt), -inf where `mask` is False.
    `mask`: bool (num_prompts, max_candidates), True where there is a candidate.
    `state`: float32 (num_prompts, hidden_size), the hidden state of the prompt's last token (causal) or of the first
    decoder position (encoder-decoder), after the final norm: the input of value and action heads.
    """

    log_probs: Tensor
    mask: Tensor
    state: Tensor

    @classmethod
    def of(cls, counts: Sequence[int], log_probs: Tensor, state: Tensor) -> Self:
        """Pad the concatenated log-probabilities of all candidates; prompt i has ``counts[i]`` candidates."""
        mask = torch.arange(max(counts, default=0)) < torch.tensor(counts, dtype=torch.long)[:, None]
        mask = mask.to(log_probs.device)
        padded = torch.full(mask.shape, -torch.inf, device=log_probs.device)
        return cls(padded.masked_scatter(mask, log_probs), mask, state)


class CandidateScorer:
    """Scores candidates with one model; `kept_bytes` is the size of keys and values from the last `keeping` context."""

    def __init__(self, backbone: Backbone, start_token: int) -> None:
        self.backbone, self.start_token = backbone, start_token
        self.reader: CausalReader | EncoderDecoderReader
        if backbone.is_encoder_decoder:
            self.reader = EncoderDecoderReader(backbone, start_token)
        else:
            self.reader = CausalReader(backbone)
        self._reads = {"tree": self.reader.packed, "lines": self.reader.plain}
        self.tree = TreeReader(backbone, self.reader.plain)
        self.kept_bytes = 0
        self._memory: KeyValueMemory | None = None
        self._encoded: dict[tuple[int, ...], Tensor] | None = None
        # Results of the exactness checks, keyed by `Layers.check_length`
        self._ways: dict[int, Way] = {}

    def __call__(
        self, questions: Sequence[ScoringQuestion], raw: bool = False, growing: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return each candidate's score, float32 (num_candidates,), and each prompt's state (num_questions, hidden).

        ``raw`` sums unnormalised logits instead of log-probabilities (for GLAM compatibility). ``growing`` means that
        prompts may extend each other, like the steps of a conversation. Each question has at least one candidate.
        """
        scores, states = self.token_scores(questions, raw, growing)
        lengths = [len(candidate) for question in questions for candidate in question.candidates]
        return sums_of(lengths, scores), states

    def token_scores(
        self, questions: Sequence[ScoringQuestion], raw: bool = False, growing: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Like `__call__`, but return a score for each token of the candidates; equal questions are read once."""
        keys = [(tuple(prompt), tuple(map(tuple, candidates))) for prompt, candidates in questions]
        distinct = dict(sorted(zip(keys, questions, strict=True), key=lambda pair: -len(pair[1].prompt)))
        parts = {key: split_wide(question.candidates, MAX_ROWS) for key, question in distinct.items()}
        narrow = [
            ScoringQuestion(question.prompt, [question.candidates[index] for index in part] or [[]])
            for key, question in distinct.items()
            for part in parts[key]
        ]
        answers = self._read(narrow, growing, cached=True)
        scores, first = self.scores_of(answers, raw), 0
        results = {}
        for key, question in distinct.items():
            stop = first + len(parts[key])
            question_scores = scores[first]
            if len(parts[key]) > 1:
                indices = [index for part in parts[key] for index in part]
                pieces = torch.cat(scores[first:stop]).split([len(question.candidates[index]) for index in indices])
                piece_of = dict(zip(indices, pieces, strict=True))
                question_scores = torch.cat([piece_of[index] for index in range(len(question.candidates))])
            results[key] = question_scores, answers[first].rows[0].float()
            first = stop
        return torch.cat([results[key][0] for key in keys]), torch.stack([results[key][1] for key in keys])

    def states(self, prompts: Sequence[Tokens], growing: bool = False) -> Tensor:
        """Return each prompt's state without scoring candidates, float32 (num_prompts, hidden)."""
        if growing or self.tree.has_frozen_layers:
            questions = [ScoringQuestion(list(prompt), [[]]) for prompt in prompts]
            return self.token_scores(questions, growing=growing)[1]
        return self.reader.states(prompts)

    def read(self, questions: Sequence[ScoringQuestion], growing: bool = False) -> list[RowStates]:
        """Return the states of each question's rows."""
        # Within `keeping`, prompts are encoded once for all calls; scores never depend on what was read before.
        if not isinstance(self.reader, EncoderDecoderReader):
            return self._read(questions, growing)
        self.reader.encoded = self._encoded
        try:
            return self._read(questions, growing)
        finally:
            self._encoded, self.reader.encoded = self.reader.encoded, None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Within this context, without gradients, keep states of prompts that may grow. Weights must not change."""
        before = self._memory, self._encoded
        self._memory, self._encoded = KeyValueMemory(), {}
        try:
            yield
        finally:
            self.kept_bytes = self._memory.num_bytes
            self._memory, self._encoded = before

    def _read(self, questions: Sequence[ScoringQuestion], growing: bool, cached: bool = False) -> list[RowStates]:
        if growing and self._can_grow():
            return self.tree.read(questions, None if torch.is_grad_enabled() else self._memory)
        answers: dict[int, RowStates] = {}
        for batch in batches([len(q.prompt) for q in questions], TOKENS_AT_ONCE, float("inf")):
            answers.update(zip(batch, self.answers([questions[i] for i in batch], cached), strict=True))
        return [answers[index] for index in range(len(questions))]

    def _can_grow(self) -> bool:
        """Return True if prompts that extend each other can be read as one text; warn once if not."""
        if (why := self.tree.why_not) is not None:
            self.backbone.warn_once(
                f"{type(self.backbone.model).__name__} cannot reuse earlier steps of a conversation ({why}): each "
                "step reads the whole history again, which is slower"
            )
        return why is None

    def answers(self, questions: Sequence[ScoringQuestion], cached: bool = False) -> list[RowStates]:
        """Return the states of each question's rows with the fastest exact method; use `read_upper` if ``cached``."""
        groups: dict[Way, list[int]] = {}
        for index, (prompt, candidates) in enumerate(questions):
            before = 1 if self.backbone.is_encoder_decoder else len(prompt)  # a candidate's last token is not read
            groups.setdefault(self.way_at(before + max(1, *map(len, candidates)) - 1), []).append(index)
        answers: dict[int, RowStates] = {}
        for way, indices in groups.items():
            upper = cached and way == "tree" and self.tree.has_frozen_layers
            read = self.tree.read_upper if upper else self._reads[way]
            answers.update(zip(indices, read([questions[index] for index in indices]), strict=True))
        return [answers[index] for index in range(len(questions))]

    def way_at(self, length: int) -> Way:
        """Return the method of reading candidates in texts of up to this length; checked once."""
        check = self.backbone.layers.check_length(length)
        if check in self._ways:
            return self._ways[check]
        others, encodes = self.backbone.layers.others, self.backbone.is_encoder_decoder
        ways: list[Way] = ["lines"] if others or (encodes and check) else ["tree", "lines"]

        def scores(way: Way, questions: list[ScoringQuestion]) -> Tensor:
            lengths = [len(candidate) for question in questions for candidate in question.candidates]
            return sums_of(lengths, torch.cat(self.scores_of(self._reads[way](questions), raw=False)))

        way, why = find_way(self.backbone, self.start_token, {way: partial(scores, way) for way in ways}, check)
        if way == "lines":
            why = f"layers of the kind {', '.join(others)}" if others else why
            name, longer = type(self.backbone.model).__name__, f" in texts of {check} tokens or more" if check else ""
            whole = "" if encodes else " with its whole prompt"
            self.backbone.warn_once(
                f"{name} cannot read several candidates{longer} in one row exactly ({why}): each is read "
                f"separately{whole}, which is slower"
            )
        self._ways[check] = way
        return way

    def scores_of(self, answers: Sequence[RowStates], raw: bool) -> list[Tensor]:
        """Return the score of each target, float32 (num_targets,), answer by answer."""
        rows = torch.cat([answer.rows for answer in answers])  # (num_rows, hidden)
        targets, first_row = [], 0
        for answer in answers:
            targets.append(answer.targets + torch.tensor([[first_row], [0]]))
            first_row += len(answer.rows)
        row, token = torch.cat(targets, dim=1).to(rows.device)  # each (num_targets,)
        return list(self._scores_at(rows, row, token, raw).split([a.targets.shape[1] for a in answers]))

    def _scores_at(self, rows: Tensor, row: Tensor, token: Tensor, raw: bool) -> Tensor:
        """Return float32 (num_targets,), the log-probability (or logit) of each `token` at its `row` of `rows`."""
        rows_at_once = max(1, _MAX_LOGITS // self.backbone.model.config.get_text_config().vocab_size)
        if not len(token):
            return rows[:0, 0].float()  # keeps the graph, so that tokens with probability 1 have gradient 0
        if len(rows) <= rows_at_once:  # the usual case, which needs no synchronisation with an accelerator
            logits = self.backbone.logits(rows).float()  # (num_rows, vocabulary)
            picked = logits[row, token]
            return picked if raw else picked - logits.logsumexp(-1)[row]
        scores = torch.zeros(len(token), device=rows.device)
        for first in range(0, len(rows), rows_at_once):
            here = ((row >= first) & (row < first + rows_at_once)).nonzero()[:, 0]
            part = rows[first : first + rows_at_once]
            scores = scores.index_put((here,), self._scores_at(part, row[here] - first, token[here], raw))
        return scores


def normalised(
    scores: Tensor,
    texts: Sequence[Sequence[str]],
    questions: Sequence[ScoringQuestion],
    normalize: Normalize,
    compat: str | None,
) -> Tensor:
    """Normalise scores, float32 (total number of candidates,), as described in `LanguageModel.score`."""
    lengths = torch.tensor([len(candidate) for question in questions for candidate in question.candidates])
    if compat == "glam":
        return scores + (lengths.max() - lengths).to(scores)
    if compat is not None:
        raise ConfigError(f"unknown compat {compat!r}: use 'glam' or None")
    if normalize == "sum":
        return scores
    if normalize == "word":
        lengths = torch.tensor([len(text.split()) for options in texts for text in options])
    elif normalize != "token":
        raise ConfigError(f"unknown normalize {normalize!r}: use 'sum', 'token' or 'word'")
    return scores / lengths.clamp(min=1).to(scores)


def sums_of(lengths: Sequence[int], values: Tensor) -> Tensor:
    """Return sums of consecutive values, `lengths[i]` values for sum i, float32 (len(lengths),)."""
    owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    total = torch.zeros(len(lengths), device=values.device)
    return total.index_add(0, owners.to(values.device), values)
