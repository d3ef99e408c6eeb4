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
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from groundling.errors import GroundlingError
from groundling.lm.backbone import Backbone
from groundling.lm.read.exactness import Way, agree, find_way, learns_alike, words_of
from groundling.lm.read.frozen_layers import FrozenLayers
from groundling.lm.read.packing import MAX_ROWS, ScoringQuestion, Tokens, batches, split_wide
from groundling.lm.read.prompt_cache import PromptCache
from groundling.lm.read.reader import TOKENS_AT_ONCE, Reader, RowStates
from groundling.lm.read.transcript import chains, read_growing

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


Normalize = Literal["sum", "token", "word"]
_Asked = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
_Read = Callable[[Sequence[ScoringQuestion]], list[RowStates]]


@dataclass
class Scorer:
    """Scores candidates with one model."""

    backbone: Backbone
    start_token: int
    # Of what was tried, by `Layers.least`.
    _ways: dict[int, Way] = field(default_factory=dict, init=False)
    _learns: dict[int, bool] = field(default_factory=dict, init=False)
    _announced: set[tuple[str, int]] = field(default_factory=set, init=False)
    _grows: bool | None = field(default=None, init=False)
    _kept: PromptCache | None = field(default=None, init=False)
    _encoded: dict[tuple[int, ...], Tensor] | None = field(default=None, init=False)
    kept_bytes: int = field(default=0, init=False)
    """What was kept at the end of the last `keeping`."""

    def __post_init__(self) -> None:
        self.reader = Reader(self.backbone, self.start_token)
        self.frozen = FrozenLayers(self.backbone)

    def __call__(
        self, questions: Sequence[ScoringQuestion], raw: bool = False, growing: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Scores of all candidates in one row, and the state of each prompt.

        Args:
            questions: Prompts with at least one candidate each.
            raw: Sums of unnormalised logits instead of log-probabilities (for the GLAM compatibility option).
            growing: Whether it is worth looking for prompts that begin with each other.

        Returns:
            Float32 (total number of candidates,), question by question; float32 (num_questions, hidden).
        """
        scores, states = self.token_scores(questions, raw, growing)
        return sums_of([len(candidate) for question in questions for candidate in question.candidates], scores), states

    def token_scores(
        self, questions: Sequence[ScoringQuestion], raw: bool = False, growing: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The same of every token of every candidate; what is asked twice is computed once.

        Returns:
            Float32 (total number of tokens,), question by question, candidate by candidate; float32 (num_questions,
            hidden).
        """
        asked = [(tuple(prompt), tuple(map(tuple, candidates))) for prompt, candidates in questions]
        distinct = dict(zip(asked, questions, strict=True))
        results: dict[_Asked, tuple[Tensor, Tensor]] = {}
        keys = list(distinct)
        alone = partial(self.answers, cached=True)
        for group, read in self._groups([prompt for prompt, _ in keys], growing, alone):
            group_keys = [keys[index] for index in group]
            scored = self._score_group([distinct[key] for key in group_keys], raw, read)
            results.update(zip(group_keys, scored, strict=True))
        return torch.cat([results[key][0] for key in asked]), torch.stack([results[key][1] for key in asked])

    def states(self, prompts: Sequence[Tokens], growing: bool = False) -> Tensor:
        """Float32 (num_prompts, hidden): each prompt's state when no candidate is scored."""
        if growing or self.frozen.suits(self.reader.plain):
            return self.token_scores([ScoringQuestion(list(prompt), [[]]) for prompt in prompts], growing=growing)[1]
        return self.reader.states(prompts)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Within this context growing prompts are gone on from as they were read, by the same weights, and those whose
        answers grow are encoded once.
        """
        before, self._kept = self._kept, PromptCache(self.backbone)
        encoded_before, self._encoded = self._encoded, {}
        try:
            yield
        finally:
            self.kept_bytes = self._kept.num_bytes
            self._kept, self._encoded = before, encoded_before

    def _groups(self, prompts: Sequence[Tokens], growing: bool, alone: _Read) -> Iterator[tuple[list[int], _Read]]:
        """Indices of what is read together, and how; ``alone`` where prompts do not grow."""
        if growing and self._growing_is_exact():
            keeps = self._kept is not None and not torch.is_grad_enabled()
            yield list(range(len(prompts))), self._go_on if keeps else partial(read_growing, self.backbone)
            return
        for batch in batches([len(prompt) for prompt in prompts], TOKENS_AT_ONCE, float("inf")):
            yield batch, alone

    def _go_on(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """From what is kept; of several steps of one conversation the last, the others as one text."""
        assert self._kept is not None
        groups = chains([question.prompt for question in questions])
        last, before = [group[-1] for group in groups], [index for group in groups for index in group[:-1]]
        if not before:
            return self._kept.answers(questions)
        answers = self._kept.answers([questions[index] for index in last])
        answers += read_growing(self.backbone, [questions[index] for index in before])
        by_index = dict(zip([*last, *before], answers, strict=True))
        return [by_index[index] for index in range(len(questions))]

    def _growing_is_exact(self) -> bool:
        """Whether prompts can be read as one text that grows; tried once, and told if not."""
        if self._grows is None:
            why = self._why_not_growing()
            self._grows = why is None
            if why is not None:
                warnings.warn(
                    f"{type(self.backbone.model).__name__} cannot go on from what it has read of a conversation "
                    f"({why}): each step is read with all that was said before, which is slower",
                    stacklevel=2,
                )
        return self._grows

    def _why_not_growing(self) -> str | None:
        backbone = self.backbone
        layers = backbone.layers
        if backbone.is_encoder_decoder:
            return "its encoder reads a text as a whole"
        if layers.others or layers.turns or layers.window:
            return "not all of its layers look at the whole text alike"
        if (why := backbone.why_not_plain) is not None:
            return why
        words, others = words_of(backbone, 40, 7, 5), words_of(backbone, 40, 11, 3)
        candidates = [[words[0]], words[1:3], [words[1], *words[3:5]], []]
        questions = [ScoringQuestion(words[:length], candidates) for length in (9, 17, 34)]
        pairs = [(q, ScoringQuestion(others[: len(q.prompt) + 2], candidates[:2])) for q in questions]
        kept = PromptCache(backbone)

        def rows(answers: Sequence[RowStates]) -> Tensor:
            return torch.cat([answer.rows for answer in answers]).float()

        alike = agree(
            backbone,
            lambda: torch.cat(
                [rows(read_growing(backbone, questions)), *(rows(kept.answers(pair)) for pair in pairs)]
            ),
            lambda: torch.cat(
                [rows(self.reader.packed(questions)), *(rows(self.reader.packed(pair)) for pair in pairs)]
            ),
        )
        return None if alike else "a trial gave other states than each step alone"

    def _score_group(
        self, questions: Sequence[ScoringQuestion], raw: bool, read: _Read
    ) -> list[tuple[Tensor, Tensor]]:
        parts = [self._parts(question) for question in questions]
        narrow = [
            ScoringQuestion(question.prompt, [question.candidates[index] for index in part] or [[]])
            for question, question_parts in zip(questions, parts, strict=True)
            for part in question_parts
        ]
        answers = read(narrow)
        scores = self.scores_of(answers, raw)
        results = []
        first = 0
        for question, question_parts in zip(questions, parts, strict=True):
            part_scores = scores[first : first + len(question_parts)]
            question_scores = (
                part_scores[0]
                if len(question_parts) == 1
                else _in_order(question.candidates, question_parts, part_scores)
            )
            results.append((question_scores, answers[first].rows[0].float()))
            first += len(question_parts)
        return results

    def _parts(self, question: ScoringQuestion) -> list[list[int]]:
        """Indices of candidates that are read together; the first part's are read as the prompt is alone."""
        prompt, candidates = question
        if self.backbone.is_encoder_decoder or not self.backbone.layers.turns:
            return split_wide(candidates, MAX_ROWS)
        stage = self.backbone.layers.stage
        by_stage: dict[int, list[int]] = {stage(len(prompt)): []}
        for index, candidate in enumerate(candidates):
            by_stage.setdefault(stage(len(prompt) + max(1, len(candidate)) - 1), []).append(index)
        return [
            [indices[place] for place in part]
            for indices in by_stage.values()
            for part in split_wide([candidates[index] for index in indices], MAX_ROWS)
        ]

    def scores_of(self, answers: Sequence[RowStates], raw: bool) -> list[Tensor]:
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
            return rows[:0, 0].float()  # of the graph, so that a loss of nothing but certainties has gradients: 0
        if len(rows) <= some_rows:  # usual; an accelerator does not have to tell which targets are here
            return self._scores_among(rows, row, token, raw)
        scores = torch.zeros(len(token), device=rows.device)
        for first in range(0, len(rows), some_rows):
            here = ((row >= first) & (row < first + some_rows)).nonzero()[:, 0]
            part = rows[first : first + some_rows]
            scores = scores.index_put((here,), self._scores_among(part, row[here] - first, token[here], raw))
        return scores

    def _scores_among(self, rows: Tensor, row: Tensor, token: Tensor, raw: bool) -> Tensor:
        """`_scores_at`, of rows whose logits are held at once."""
        logits = self.backbone.logits(rows).float()  # (num_rows, vocabulary)
        picked = logits[row, token]
        return picked if raw else picked - logits.logsumexp(-1)[row]

    # How the hidden states are got

    def read(self, questions: Sequence[ScoringQuestion], growing: bool = False) -> list[RowStates]:
        """`answers`; where it is ``growing``, from what prompts that begin with each other have in common."""
        if not growing:
            # The prompts come again with each token of their answers. What is scored is encoded anew: no figure of it
            # depends on what was read before.
            self.reader.encoded = self._encoded
            try:
                return self.answers(questions)
            finally:
                self._encoded, self.reader.encoded = self.reader.encoded, None
        answers: dict[int, RowStates] = {}
        for group, read in self._groups([q.prompt for q in questions], growing, self.answers):
            answers.update(zip(group, read([questions[index] for index in group]), strict=True))
        return [answers[index] for index in range(len(questions))]

    def answers(self, questions: Sequence[ScoringQuestion], cached: bool = False) -> list[RowStates]:
        """Final hidden states of each question's rows, by the fastest way that is exact.

        Args:
            questions: What is read.
            cached: Whether the states of frozen layers may be cached: the questions are likely to come again.
        """
        groups: dict[tuple[Way, int], list[int]] = {}
        for index, question in enumerate(questions):
            length, stage = self._length(question), self.backbone.layers.stage
            way = self.way_at(length)
            if way in ("after", "steps") and stage(len(question.prompt)) != stage(length):
                why = "beyond that length the prompt's positions, too, are encoded differently"
                way = self._slow(why, self.backbone.layers.least(length))
            groups.setdefault((way, stage(length)), []).append(index)
        answers: dict[int, RowStates] = {}
        for (way, _), indices in groups.items():
            read = self._answer[way]
            if cached and way == "tree" and self.frozen.suits(self.reader.plain):
                read = self.frozen.answers
            group_answers = read([questions[index] for index in indices])
            answers.update(zip(indices, group_answers, strict=True))
        return [answers[index] for index in range(len(questions))]

    @property
    def _answer(self) -> dict[Way, Callable[[Sequence[ScoringQuestion]], list[RowStates]]]:
        return {
            "tree": self.reader.packed,
            "after": partial(self.reader.after, one_by_one=False),
            "steps": partial(self.reader.after, one_by_one=True),
            "lines": self.reader.plain,
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
        return way if self._learns[least] else self._slow("what it remembers of a prompt has no gradients", least)

    def _find_way(self, least: int) -> Way:
        layers = self.backbone.layers
        ways: list[Way] = ["lines"]
        if not self.backbone.is_encoder_decoder:
            ways = ["after", "steps", "lines"]
        if not layers.others and not (self.backbone.is_encoder_decoder and least):
            ways.insert(0, "tree")
        way, why = find_way(self.backbone, self.start_token, {way: self._scores_by(way) for way in ways}, least)
        if way != "lines":
            return way
        if layers.others:
            why = f"layers of the kind {', '.join(layers.others)}; {why}"
        return self._slow(why, least)

    def _slow(self, why: str, least: int) -> Way:
        """Tell once that each candidate is read with its prompt."""
        if (why, least) not in self._announced:
            self._announced.add((why, least))
            name, longer = type(self.backbone.model).__name__, f" of {least} tokens and more" if least else ""
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


def normalised(
    scores: Tensor,
    texts: Sequence[Sequence[str]],
    questions: Sequence[ScoringQuestion],
    normalize: Normalize,
    compat: str | None,
) -> Tensor:
    """Float32 scores (total number of candidates,) as `LanguageModel.score` gives them; errors are its own, too."""
    lengths = torch.tensor([len(candidate) for question in questions for candidate in question.candidates])
    if compat == "glam":
        return scores + (lengths.max() - lengths).to(scores)
    if compat is not None:
        raise GroundlingError(f"unknown compat {compat!r}: the only one is 'glam'")
    if normalize == "sum":
        return scores
    if normalize == "word":
        lengths = torch.tensor([len(text.split()) for options in texts for text in options])
    elif normalize != "token":
        raise GroundlingError(f"unknown normalize {normalize!r}: use 'sum', 'token' or 'word'")
    return scores / lengths.clamp(min=1).to(scores)


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
