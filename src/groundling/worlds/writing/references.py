"""Rollouts of a pool's references, for supervised training."""

import math
from collections.abc import Callable

import torch

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_generation import SampleOrder
from groundling.errors import ConfigError
from groundling.policies.policy import Policy
from groundling.policies.text_states import Written
from groundling.worlds.episode import Episode
from groundling.worlds.writing.collect import PoolCollector, as_writer, check_room
from groundling.worlds.writing.config import PromptEncoder


class References(PoolCollector):
    """Gives a pool's references as rollouts, as if the policy had written them.

    A sample with several references gives another one each time. A text of more than ``num_tokens``, including its end
    token, is cut, and does not end. With ``has_decoder``, an encoder-decoder also learns the special tokens that its
    tokenizer puts around targets (BART's ``<s>``, T5's ``</s>``). Other arguments as of `PoolCollector`. Raise
    `ConfigError` if a sample has no reference, or the model no end token.
    """

    def __init__(
        self,
        order: SampleOrder,
        encode: PromptEncoder,
        num_texts: int,
        local_rows: slice,
        num_tokens: int,
        has_decoder: bool = False,
    ) -> None:
        for sample in order.samples:
            if not any(sample.references):
                raise ConfigError(
                    f"sample {sample.id} has no reference, so there is nothing to learn from: choose another pool"
                )
        if encode.end_token is None:
            raise ConfigError(
                "the model has no end token, so it cannot learn where a text ends: name a tokenizer with an eos_token "
                "(model.tokenizer=…)"
            )
        super().__init__(order, encode, num_texts, local_rows, num_tokens)
        self._has_decoder, self._end_token, self._by_pass = has_decoder, encode.end_token, False
        self._control_tokens = encode.control_tokens(order.samples[0])  # the same for all samples of a pool

    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        """Return the next samples' references; values and log-probabilities are 0. With `in_passes`, columns after the
        end of a pass repeat its last text and are masked.
        """
        writer = as_writer(policy)
        first, total = self._order.drawn, len(self._order.samples)
        count = min(self._num_texts, total - first % total) if self._by_pass else self._num_texts
        drawn = self._order.draw(count)
        drawn += drawn[-1:] * (self._num_texts - count)
        epochs = [(first + min(k, count - 1)) // total for k in range(self._num_texts)]
        texts = [s.references[epoch % len(s.references)] for s, epoch in zip(drawn, epochs, strict=True)]
        prompts = self._encode(drawn[self._local_rows])
        tokens = [self._tokens(text) for text in texts[self._local_rows]]
        for prompt, ids in zip(prompts, tokens, strict=True):
            check_room(writer, len(prompt.ids), len(ids))
        actions = torch.zeros(len(tokens), self._num_tokens, dtype=torch.int64)  # (num_texts, num_tokens)
        for row, ids in zip(actions, tokens, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        lengths = torch.tensor([len(ids) for ids in tokens])[:, None]
        counts = torch.arange(self._num_texts)[self._local_rows, None] < count  # (num_texts, 1)
        mask = ((torch.arange(self._num_tokens) < lengths) & counts).T  # (num_tokens, num_texts)
        zeros = torch.zeros(mask.shape)
        rollout = Rollout(
            observations=[Written(p.ids, len(t), None) for p, t in zip(prompts, tokens, strict=True)],
            actions=actions.T.contiguous(),
            log_probs=zeros,
            values=zeros,
            rewards=zeros,
            dones=(torch.arange(self._num_tokens) == lengths - 1).T,
            last_values=torch.zeros(len(tokens)),
            last_observations=[],
            sequences=True,
            mask=mask,
        )
        on_step(rollout.num_transitions)
        return rollout, []

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """Count passes of tokens (see `Collector.in_passes`); tokenizing 100,000 references takes half a minute."""
        self._by_pass = True
        samples = self._order.samples
        texts = [s.references[epoch % len(s.references)] for epoch in range(epochs) for s in samples]
        lengths = {text: len(self._tokens(text)) for text in set(texts)}
        return sum(lengths[text] for text in texts), epochs * math.ceil(len(samples) / self._num_texts)

    def _tokens(self, text: str) -> list[int]:
        tokenizer = self._encode.tokenizer
        ids = self._encode.target(text, self._has_decoder, self._control_tokens)
        last = ids[-2:] if self._has_decoder else []  # mBART writes the language after its end token
        if tokenizer.eos_token_id in last:
            ids[-2:] = [self._end_token if token == tokenizer.eos_token_id else token for token in last]
        else:
            ids.append(self._end_token)
        return ids[: self._num_tokens]
