"""Guided decoding: compute the probability of generating each of several texts if no other text is allowed.

At every step, only tokens that continue one of the texts are allowed, and their probabilities are renormalised, as in
Outlines (Willard and Louf 2023, arXiv 2307.09702), with the trie of GENRE (De Cao et al. 2021, arXiv 2010.00904). A
text's probability is the product of these conditional probabilities. All of them follow from the logits at the trie's
nodes, so one pass yields the distribution over the texts. Sampling from it is equivalent to decoding token by token.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groundling.lm.read.batching import ScoringQuestion, Tokens
from groundling.lm.read.scoring import CandidateScorer, sums_of
from groundling.tokenization.chat import common_length


@dataclass(frozen=True)
class Trie:
    """The tokens of several texts as a tree whose edges are the allowed tokens.

    Each text consists of its tokens and an end token. Tokens after its last choice (branching point) have probability
    1 and are omitted, so end tokens are kept only for prefixes of other texts, which have a sequence per end token.
    """

    chosen: list[list[int]]  # the tokens of each sequence up to its last choice
    num_lines: list[int]  # number of sequences of each text
    edges: Tensor  # int64 (number of tokens in `chosen`,), the edge of each token, sequence by sequence
    first: Tensor  # int64 (num_edges,), the index of each edge's first token
    nodes: Tensor  # int64 (num_edges,), the node that an edge leaves: 0 is the root, and edge i leads to node i + 1
    copies: Tensor  # int64 (num_texts,), number of texts with the same tokens, which are equally likely

    @classmethod
    def of(cls, texts: Sequence[Tokens], end_tokens: Sequence[int]) -> Self:
        """Build the trie of one or more texts (token ids), which may end with any of the end tokens."""
        keys = [tuple(text) for text in texts]
        copies, lengths = Counter(keys), _lengths_of_choices(keys)
        num_lines = [len(end_tokens) if lengths[key] > len(key) else 1 for key in keys]
        chosen: list[list[int]] = []
        edges: list[int] = []
        first: list[int] = []
        nodes: list[int] = []
        known: dict[tuple[int, int, bool], int] = {}  # (node, token, whether it ends the text) -> edge
        for key, ends in zip(keys, num_lines, strict=True):
            for end in end_tokens[:ends]:
                chosen.append([*key, end][: lengths[key]])
                node = 0
                for place, token in enumerate(chosen[-1]):
                    step = node, token, place == len(key)
                    if step not in known:
                        known[step] = len(nodes)
                        first.append(len(edges))
                        nodes.append(node)
                    edges.append(known[step])
                    node = edges[-1] + 1
        return cls(
            chosen,
            num_lines,
            torch.tensor(edges, dtype=torch.long),
            torch.tensor(first, dtype=torch.long),
            torch.tensor(nodes, dtype=torch.long),
            torch.tensor([copies[key] for key in keys]),
        )


def _lengths_of_choices(texts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Return the number of tokens of each text up to its last choice, counting its end token."""
    # In sorted order, a text shares its longest common prefix with one of its neighbours.
    distinct = sorted(set(texts))
    common = [0, *(common_length(text, after) + 1 for text, after in pairwise(distinct)), 0]
    return {text: max(before, after) for text, (before, after) in zip(distinct, pairwise(common), strict=True)}


def guided_log_probs(
    scorer: CandidateScorer,
    questions: Sequence[ScoringQuestion],
    end_tokens: Sequence[int],
    temperature: float,
    growing: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return each candidate's log-probability (num_candidates,) and each prompt's state (num_questions, hidden)."""
    # Float32, with gradients. Any end token can end a candidate that is a prefix of another one.
    known: dict[tuple[tuple[int, ...], ...], Trie] = {}
    tries: list[Trie] = []
    for _, candidates in questions:
        key = tuple(map(tuple, candidates))
        if key not in known:
            known[key] = Trie.of(candidates, end_tokens)
        tries.append(known[key])
    chosen = [ScoringQuestion(asked.prompt, trie.chosen) for asked, trie in zip(questions, tries, strict=True)]
    logits, states = scorer.token_scores(chosen, True, growing)
    return written_log_probs(tries, logits, temperature), states


def written_log_probs(tries: Sequence[Trie], logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the texts' log-probabilities, float32 (number of texts,); the probabilities of a trie's texts sum to 1.

    ``logits``, float32 (number of tokens in all `chosen`,), contains each token's logit given the preceding tokens.
    """
    num_tokens, num_edges = [len(trie.edges) for trie in tries], [len(trie.nodes) for trie in tries]
    first = _offset([trie.first for trie in tries], num_tokens).to(logits.device)
    edges = _offset([trie.edges for trie in tries], num_edges).to(logits.device)
    nodes = _offset([trie.nodes for trie in tries], num_edges).to(logits.device)
    choices = logits[first] / temperature  # (num_edges,)
    highest = torch.full_like(choices, -torch.inf)  # by node; there are no more nodes than edges
    highest = highest.scatter_reduce(0, nodes, choices.detach(), "amax")
    choices = choices - highest[nodes]
    totals = torch.zeros_like(choices).index_add(0, nodes, choices.exp())
    log_probs = choices - totals[nodes].log()  # (num_edges,), 0 where there is no choice
    lengths = [len(tokens) for trie in tries for tokens in trie.chosen]
    num_lines = [number for trie in tries for number in trie.num_lines]
    written = sums_of(lengths, log_probs[edges])  # (number of sequences,)
    if len(lengths) > len(num_lines):
        lines = pad_sequence(written.split(num_lines), batch_first=True, padding_value=-torch.inf)
        written = lines.logsumexp(-1)
    copies = torch.cat([trie.copies for trie in tries]).to(logits.device)
    return written - copies.log()


def _offset(indices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Concatenate indices into sequences of these sizes, shifted to index the concatenated sequences."""
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    return torch.cat([index + start for index, start in zip(indices, starts, strict=True)])
