"""States and log-probabilities of answers that are generated token by token and later evaluated again."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from groundling.lm.language_model import LanguageModel
from groundling.lm.read.batching import ScoringQuestion, Tokens

Among = tuple[int, ...] | None  # The tokens from which one was chosen; None: the whole vocabulary


def states_after(lm: LanguageModel, prompts: Sequence[Tokens], answers: Sequence[Tokens]) -> Tensor:
    """Return the states that predict each answer's next token, (num_prompts, hidden), on the model's device."""
    # Within `LanguageModel.keeping` only new tokens are read, and a prompt is encoded once.
    if lm.is_encoder_decoder:  # a candidate's last token is predicted, never read
        questions = [_question(prompt, [*ids, 0]) for prompt, ids in zip(prompts, answers, strict=True)]
        states = [one.rows[one.targets[0, -1]] for one in lm.read(questions)]
        return torch.stack(states).to(lm.device)
    texts = [(*prompt, *ids) for prompt, ids in zip(prompts, answers, strict=True)]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    read = lm.read([_question(text, []) for text in places], growing=True)
    return torch.stack([read[places[text]].rows[0] for text in texts]).to(lm.device)


def answer_states(lm: LanguageModel, prompts: Sequence[Tokens], answers: Sequence[Tokens], growing: bool) -> Tensor:
    """Return the states that predict each token of the answers, none empty: (num_tokens, hidden), with gradients."""
    read = lm.read([_question(*pair) for pair in zip(prompts, answers, strict=True)], growing)
    firsts = torch.tensor([0, *(len(one.rows) for one in read[:-1])]).cumsum(0).tolist()
    places = torch.cat([first + one.targets[0] for first, one in zip(firsts, read, strict=True)])
    states = torch.cat([one.rows for one in read])
    # A look-up, whose backward pass is one addition, and one copy of indices for all answers.
    return F.embedding(places.to(states.device), states).to(lm.device)


def log_probs_among(logits: Tensor, among: Sequence[Among], temperature: float, ends: Sequence[int] = ()) -> Tensor:
    """Return log-probabilities among the tokens that can come, (num_tokens, vocabulary); -inf for others.

    If one of ``ends``, the model's end tokens, is allowed among other tokens, it has the sum of all ends'
    probabilities.
    """
    rows = [row for row, ids in enumerate(among) if ids is not None]
    places = [(row, token) for row in rows for token in among[row] or ()]
    ending = [(row, token) for row, token in places if token in ends]
    if ending and len(ends) > 1:
        at = tuple(torch.tensor(ending, device=logits.device).T)
        of_ends = logits[at[0]][:, list(ends)] / temperature  # (number of rows that may end, number of ends)
        logits = logits.index_put(at, of_ends.logsumexp(-1) * temperature)
    if rows:
        left_out = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
        left_out[torch.tensor(rows, device=logits.device)] = True
        left_out[tuple(torch.tensor(places, device=logits.device).T)] = False
        logits = logits.masked_fill(left_out, -torch.inf)
    return (logits / temperature).log_softmax(-1)


def _question(prompt: Tokens, answer: Tokens) -> ScoringQuestion:
    return ScoringQuestion(list(prompt), [list(answer)])
