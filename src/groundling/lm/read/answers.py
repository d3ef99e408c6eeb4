"""Answers that are written after a prompt one token at a time, and read again to be learnt from.

Each token was chosen *among* some: all of the vocabulary, those that continue one of several texts, or, where a rule
puts it there, itself alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.lm.language_model import LanguageModel
from groundling.lm.read.packing import ScoringQuestion, Tokens

Among = tuple[int, ...] | None
"""Which tokens one was chosen among; None: any of the vocabulary."""


def states_after(lm: LanguageModel, prompts: Sequence[Tokens], written: Sequence[Tokens]) -> Tensor:
    """The states that predict each answer's next token, as a policy acts: only what is new is read.

    Args:
        lm: The model. Where its weights are said to stay (`keeping`) a causal one remembers what it has read, and an
            encoder-decoder what it has encoded.
        prompts: Token ids.
        written: Of each answer what there is of it.

    Returns:
        ``(num_prompts, hidden)``, where the model reads.
    """
    if lm.is_encoder_decoder:  # of a candidate's last token the state that predicts it is read, never the token
        answers = lm.read([_question(prompt, [*ids, 0]) for prompt, ids in zip(prompts, written, strict=True)])
        return torch.stack([answer.rows[answer.targets[0, -1]] for answer in answers]).to(lm.device)
    texts = [(*prompt, *ids) for prompt, ids in zip(prompts, written, strict=True)]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    answers = lm.read([_question(text, []) for text in places], growing=True)
    return torch.stack([answers[places[text]].rows[0] for text in texts]).to(lm.device)


def answer_states(lm: LanguageModel, prompts: Sequence[Tokens], answers: Sequence[Tokens], growing: bool) -> Tensor:
    """The states that predict each token of each answer, where the model reads, with gradients: ``(number of tokens,
    hidden)``.

    Args:
        lm: The model.
        prompts: Token ids.
        answers: One to each, of one token at least.
        growing: Whether prompts may begin with each other, as the steps of a conversation do.
    """
    questions = [_question(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    read = lm.read(questions, growing)
    firsts = torch.tensor([0, *(len(one.rows) for one in read[:-1])]).cumsum(0).tolist()
    places = torch.cat([first + one.targets[0] for first, one in zip(firsts, read, strict=True)])
    states = torch.cat([one.rows for one in read])
    # A look-up, whose backward pass is one addition, and one copy of indices for all answers.
    return F.embedding(places.to(states.device), states).to(lm.device)


def log_probs_among(logits: Tensor, among: Sequence[Among], temperature: float, ends: Sequence[int] = ()) -> Tensor:
    """Log-probabilities of what each token is chosen from, -inf where it cannot come.

    Args:
        logits: Float32 ``(num_tokens, vocabulary)``.
        among: What each is chosen among.
        temperature: Divides the logits.
        ends: The model's end tokens. One that is chosen among some tokens stands for all of them, with the sum of
            their probabilities.
    """
    rows = [row for row, ids in enumerate(among) if ids is not None]
    ending = [(row, token) for row in rows for token in among[row] or () if token in ends]
    if ending and len(ends) > 1:
        at = tuple(torch.tensor(ending, device=logits.device).T)
        of_ends = logits[at[0]][:, list(ends)] / temperature  # (number of rows that may end, number of ends)
        logits = logits.index_put(at, of_ends.logsumexp(-1) * temperature)
    if rows:
        left_out = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
        left_out[torch.tensor(rows, device=logits.device)] = True
        places = [(row, token) for row in rows for token in among[row] or ()]
        left_out[tuple(torch.tensor(places, device=logits.device).T)] = False
        logits = logits.masked_fill(left_out, -torch.inf)
    return (logits / temperature).log_softmax(-1)


def _question(prompt: Tokens, answer: Tokens) -> ScoringQuestion:
    return ScoringQuestion(list(prompt), [list(answer)])
