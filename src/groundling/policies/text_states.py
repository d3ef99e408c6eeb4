"""Prompts and generated texts, and their hidden states, computed in one pass."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.errors import warn_caller
from groundling.lm import LanguageModel
from groundling.lm.read.batching import MAX_ROWS, ScoringQuestion, padded, split_wide
from groundling.lm.read.causal import WORTH_SHARING
from groundling.prompts import Conversation
from groundling.runtime.processes import in_parts
from groundling.tokenization.chat import first_turn


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt for text generation."""

    ids: tuple[int, ...]  # token ids, including special ones, without padding

    @classmethod
    def unpad(cls, ids: Tensor, mask: Tensor) -> list["TokenPrompt"]:
        """Create prompts from padded token ids and their 0/1 mask, int64 ``(num_prompts, length)``."""
        return [cls(tuple(row[kept.bool()].tolist())) for row, kept in zip(ids.cpu(), mask.cpu(), strict=True)]


@dataclass(frozen=True, slots=True)
class Written:
    """The observation for a whole generated text, whose tokens are the actions."""

    prompt: tuple[int, ...]  # token ids
    length: int  # number of tokens in the text
    sets: Tensor | None  # the tokens allowed at each position, if filters or masks excluded any


@dataclass(frozen=True, slots=True)
class Writing:
    """Generated texts as stored in a rollout: tensors ``(num_tokens, num_texts)`` on the CPU, 0 after a text's end."""

    observations: list[Written]
    actions: Tensor  # int64
    log_probs: Tensor
    values: Tensor | None  # None without a value function
    dones: Tensor  # bool: True at each text's last token, whether or not it is an end token
    mask: Tensor  # bool: the token belongs to the text
    kl: Tensor | None  # log π(token) - log π_ref(token) before filters; None without a reference
    raw_log_probs: Tensor  # log_probs before filters and masks

    @classmethod
    def concatenate(cls, parts: Sequence["Writing"]) -> "Writing":
        """Concatenate texts with the same ``num_tokens``."""
        if len(parts) == 1:
            return parts[0]
        tensors: dict[str, Any] = {}
        for name in (field.name for field in fields(cls) if field.name != "observations"):
            columns = [getattr(part, name) for part in parts]
            tensors[name] = None if columns[0] is None else torch.cat(columns, dim=1)
        return cls([text for part in parts for text in part.observations], **tensors)

    def token_ids(self) -> list[Tensor]:
        """Return the tokens of each text, int64 ``(length,)``."""
        return [tokens[: text.length] for tokens, text in zip(self.actions.T, self.observations, strict=True)]


class ConversationTokens:
    """Encodes conversations with a model's chat template, truncated to its context length minus ``answer_tokens``."""

    def __init__(self, lm: LanguageModel, answer_tokens: int) -> None:
        self._chat, self._room = lm.chat, lm.room
        if self._room is not None and lm.max_positions is not None:
            self._room = min(self._room, lm.max_positions - answer_tokens - len(lm.chat.lead))

    def __call__(self, conversation: Conversation) -> list[int]:
        if conversation.tools and not self._chat.takes_tools(conversation.tools):
            conversation = replace(conversation, system=conversation.instructions, tools=())
        tools = conversation.tools
        turns = [(answer, conversation.message(turn)) for turn, answer in enumerate(conversation.answers, start=1)]
        first = 0
        if self._room is not None:
            lengths = [0, *(len(self._chat.turn(*turn, tools)) for turn in turns)]
            first = first_turn(lambda turn: len(self._opening(conversation, turn)), lengths, self._room)
        for begin in range(first, len(turns) + 1):  # the lengths of turns may be estimates
            words = [conversation.first_message(begin), *itertools.chain.from_iterable(turns[begin:])]
            tokens = self._chat.tokens(conversation.system, words, tools)
            if self._room is None or len(tokens) <= self._room:
                if begin:
                    self._warn("conversations", "lose their first turns")
                return tokens
        self._warn("turns", "lose their beginning, including the goal and the actions")
        return self._opening(conversation, len(turns), self._room)

    def _opening(self, conversation: Conversation, turn: int, room: int | None = None) -> list[int]:
        words = conversation.first_message(turn)
        return self._chat.opening(conversation.system, words, room, tools=conversation.tools)

    def _warn(self, kind: str, cut: str) -> None:
        # Python shows identical warnings only once.
        warn_caller(
            f"{kind} longer than {self._room} tokens {cut}: raise model.max_prompt_tokens as far as the model's "
            "context length allows, or shorten episodes or observations"
        )


class Sequences(NamedTuple):
    """Token ids of prompts and texts; only the states of each text's last positions are needed."""

    prompts: Sequence[Sequence[int]]  # read by the encoder, or first by a causal model
    written: Sequence[Sequence[int]]  # read after the prompt, or by the decoder, with its start token
    counts: Sequence[int]  # number of these positions; for a causal model, they start at the prompt's last token


def read_states(lm: LanguageModel, sequences: Sequences) -> Tensor:
    """Return the final hidden states at the requested positions, text by text, ``(sum(counts), hidden)``."""
    # A prompt shared by several texts is read once: by the encoder, or by a causal model in one row with its texts.
    if lm.is_encoder_decoder:
        return _decode(lm, sequences).to(lm.device)
    # If layers are sharded over processes, all processes must make the same number of passes, which is one here.
    groups = [] if any(map(in_parts, lm.parameters())) else _groups(sequences)
    states = _read_groups(lm, sequences, groups) if groups else {}
    rest = [index for index in range(len(sequences.counts)) if index not in states]
    if rest:
        part = Sequences(*([column[index] for index in rest] for column in sequences))  # type: ignore[arg-type]
        states.update(zip(rest, _read(lm, part).split(list(part.counts)), strict=True))
    # If a model is spread over several devices, its output is on the last one.
    return torch.cat([states[index] for index in range(len(sequences.counts))]).to(lm.device)


def _groups(sequences: Sequences) -> list[list[int]]:
    """Return groups of texts, by index, that have the same prompt and share a row."""
    to_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(sequences.prompts):
        if len(prompt) >= WORTH_SHARING:
            to_prompt.setdefault(tuple(prompt), []).append(index)
    groups = []
    for prompt, indices in to_prompt.items():
        # The number of rows is limited to the prompt's length, so that the texts' mask is no larger than the prompt's.
        parts = split_wide([sequences.written[index] for index in indices], max(MAX_ROWS, len(prompt)))
        groups += [[indices[place] for place in part] for part in parts if len(part) > 1]
    return groups


def _read_groups(lm: LanguageModel, sequences: Sequences, groups: Sequence[Sequence[int]]) -> dict[int, Tensor]:
    """Return the states at each text's requested positions, by the text's index."""
    # A candidate's last token is predicted but never read; a dummy token makes the model read the whole text.
    questions = [
        ScoringQuestion([*sequences.prompts[group[0]]], [[*sequences.written[index], 0] for index in group])
        for group in groups
    ]
    answers = lm.read(questions)
    places, first = [], 0
    for group, answer in zip(groups, answers, strict=True):
        lengths = [len(sequences.written[index]) + 1 for index in group]
        for index, rows in zip(group, answer.targets[0].split(lengths), strict=True):
            places.append(first + rows[len(rows) - sequences.counts[index] :])
        first += len(answer.rows)
    order = [index for group in groups for index in group]
    rows = torch.cat([answer.rows for answer in answers])
    states = F.embedding(torch.cat(places).to(rows.device), rows)  # its backward pass is a single scatter-add
    return dict(zip(order, states.split([sequences.counts[index] for index in order]), strict=True))


def _read(lm: LanguageModel, sequences: Sequences) -> Tensor:
    """Read each prompt with its text; rows are padded on the right, where no token attends to the padding."""
    whole = [[*prompt, *ids] for prompt, ids in zip(sequences.prompts, sequences.written, strict=True)]
    tokens, _ = padded(whole, lm.device)
    return _last(lm.backbone.read(tokens, None, None), list(map(len, whole)), sequences.counts)


def _decode(lm: LanguageModel, sequences: Sequences) -> Tensor:
    distinct = list(dict.fromkeys(map(tuple, sequences.prompts)))
    places = {prompt: place for place, prompt in enumerate(distinct)}
    tokens, mask = padded(distinct, lm.device)
    encoded = lm.backbone.encode(tokens, mask)
    if len(distinct) < len(sequences.prompts):
        rows = torch.tensor([places[tuple(prompt)] for prompt in sequences.prompts], device=mask.device)
        encoded, mask = encoded[rows.to(encoded.device)], mask[rows]
    written, _ = padded(sequences.written, lm.device)
    hidden = lm.backbone.decode(written, encoded, mask, None)
    return _last(hidden, list(map(len, sequences.written)), sequences.counts)


def _last(hidden: Tensor, lengths: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Return the last ``counts[i]`` of the ``lengths[i]`` positions of each row of ``(rows, width, hidden)``."""
    width = hidden.shape[1]
    places = [
        torch.arange(row * width + length - count, row * width + length)
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    return F.embedding(torch.cat(places).to(hidden.device), hidden.flatten(0, 1))


def scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Put values ``(mask.sum(), ...)`` at the True positions of ``(*mask.shape, ...)``; 0 elsewhere."""
    if bool(mask.all()):
        return values.view(*mask.shape, *values.shape[1:])
    places = mask.flatten().nonzero()[:, 0].to(values.device)
    scattered = values.new_zeros(mask.numel(), *values.shape[1:]).index_copy(0, places, values)
    return scattered.view(*mask.shape, *values.shape[1:])
