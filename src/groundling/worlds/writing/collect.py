"""Rollouts of texts for a pool's prompts: those that a policy writes, or the pool's references."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies.policy import Policy
from groundling.policies.text_states import TokenPrompt, Writing, Written
from groundling.policies.token import TokenPolicy
from groundling.rewards import GeneratedTexts, RewardInputs, RewardSum
from groundling.worlds.episode import Episode
from groundling.worlds.world import Collector
from groundling.worlds.writing.config import PromptEncoder


class PoolCollector(Collector):
    """Base class of collectors that follow an order of samples; ``num_texts`` is the total over all processes."""

    def __init__(
        self, order: SampleOrder, encode: PromptEncoder, num_texts: int, local_rows: slice, num_tokens: int
    ) -> None:
        self._order, self._encode, self._local_rows = order, encode, local_rows
        self._num_texts, self._num_tokens = num_texts, num_tokens

    def state_dict(self) -> list[dict[str, Any]]:
        return [self._order.state_dict()] * (self._local_rows.stop - self._local_rows.start)

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._order.load_state_dict(states[0])


class WrittenTexts(PoolCollector):
    """Collects ``num_texts`` texts of a policy per rollout, and rewards them. ``texts_per_prompt`` is the number of
    texts in a prompt's group (RLOO, GRPO), and must divide ``num_texts``. For the others, see `PoolCollector`.
    """

    def __init__(
        self,
        order: SampleOrder,
        encode: PromptEncoder,
        reward: RewardSum,
        num_texts: int,
        local_rows: slice,
        num_tokens: int,
        texts_per_prompt: int = 1,
    ) -> None:
        super().__init__(order, encode, num_texts, local_rows, num_tokens)
        self.reward, self._group_size = reward, texts_per_prompt
        self._episodes: list[Episode] = []  # of the last rollout

    @torch.no_grad()
    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        """Collect texts for the next prompts; raise `RunError` if a reward is missing or not finite."""
        writer = as_writer(policy)
        drawn = self._order.draw(self._num_texts // self._group_size)
        samples = [sample for sample in drawn for _ in range(self._group_size)][self._local_rows]
        # Drawn for all processes, so that a text does not depend on which process writes it.
        uniforms = torch.rand(self._num_texts, self._num_tokens, dtype=torch.float64, generator=generator)
        prompts = self._encode(samples)
        writing = writer.write(prompts, uniforms[self._local_rows], self._num_tokens)
        rows = [ids.tolist() for ids in writing.token_ids()]
        texts = texts_so_far(writer.lm, prompts, rows, self.reward.per_token)
        rewarded = self.reward(reward_inputs(samples, texts, rows))  # (longest, num_texts)
        zeros = torch.zeros(writing.mask.shape)  # (num_tokens, num_texts)
        rollout = Rollout(
            observations=writing.observations,
            actions=writing.actions,
            log_probs=writing.log_probs,
            values=zeros if writing.values is None else writing.values,
            rewards=_padded(rewarded.total, self._num_tokens),
            dones=writing.dones,
            last_values=torch.zeros(len(samples)),  # every text has ended
            last_observations=[],
            sequences=True,
            mask=writing.mask,
            groups=torch.arange(self._num_texts)[self._local_rows] // self._group_size,
            kl=writing.kl,
            raw_log_probs=writing.raw_log_probs,
            parts={name: _padded(rewards, self._num_tokens) for name, rewards in rewarded.by_part.items()},
        )
        on_step(rollout.num_transitions)
        totals = rewarded.total.sum(0).tolist()
        self._episodes = [
            Episode(
                {"return": total, "length": float(len(text)), **figures},
                record={"sample_id": sample.id, "prompt": sample.prompt, "generation": text[-1], "reward": total},
            )
            for sample, text, total, figures in zip(samples, texts, totals, _figures(writing), strict=True)
        ]
        return rollout, list(self._episodes)

    def samples(self) -> list[dict[str, Any]]:
        return [episode.record for episode in self._episodes]


class References(PoolCollector):
    """Collects a pool's references as rollouts, as if the policy had written them.

    If a sample has several references, each epoch uses the next one. A text longer than ``num_tokens``, including its
    end token, is truncated and has no end token. With ``has_decoder``, an encoder-decoder also learns the special
    tokens that its tokenizer adds to targets (BART's ``<s>``, T5's ``</s>``). For the other arguments, see
    `PoolCollector`. Raises `ConfigError` if a sample has no reference, or the model has no end token.
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
                raise ConfigError(f"sample {sample.id} has no reference to learn from: choose a different pool")
        if encode.end_token is None:
            raise ConfigError(
                "the model has no end token, so it cannot learn where a text ends: set model.tokenizer=… to a "
                "tokenizer with an eos_token"
            )
        super().__init__(order, encode, num_texts, local_rows, num_tokens)
        self._has_decoder, self._end_token, self._by_pass = has_decoder, encode.end_token, False
        self._control_tokens = encode.control_tokens(order.samples[0])  # the same for all samples of a pool

    def collect(
        self, policy: Policy, *, generator: torch.Generator, on_step: Callable[[int], None] = lambda transitions: None
    ) -> tuple[Rollout, list[Episode]]:
        """Return the references of the next samples; values and log-probabilities are 0. After `in_passes`, columns
        beyond the end of a pass repeat its last text and are masked.
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
        """See `Collector.in_passes`; a step is a token. Tokenizing 100,000 references takes half a minute."""
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


def texts_so_far(
    lm: LanguageModel, prompts: Sequence[TokenPrompt], rows: Sequence[Sequence[int]], per_token: bool
) -> list[list[str]]:
    """Return the text up to each token of each row; unless ``per_token``, all but the last are empty strings."""
    texts = []
    for prompt, row in zip(prompts, rows, strict=True):
        written = lm.continuation(prompt.ids)
        texts.append(
            [written.append(token) for token in row] if per_token else [""] * (len(row) - 1) + [written.append(*row)]
        )
    return texts


def reward_inputs(
    samples: Sequence[Sample], texts: Sequence[Sequence[str]], tokens: Sequence[Sequence[int]] = ()
) -> RewardInputs:
    """Return samples and the texts written to them as reward inputs; ``texts`` is in the format of `texts_so_far`."""
    return RewardInputs.of_texts(
        GeneratedTexts(
            [sample.prompt for sample in samples],
            texts,
            [list(sample.references) for sample in samples],
            [dict(sample.meta) for sample in samples],
            tokens,
        )
    )


def _padded(rewards: Tensor, num_tokens: int) -> Tensor:
    return torch.nn.functional.pad(rewards, (0, 0, 0, num_tokens - len(rewards)))


def as_writer(policy: Policy | None) -> TokenPolicy:
    """Return the policy if it writes text; otherwise raise `ConfigError`."""
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(f"{type(policy).__name__} cannot write text: set policy.id=token for a pool")
    return policy


def check_lengths(writer: TokenPolicy, max_prompt_length: int, num_tokens: int) -> None:
    """Raise `ConfigError` if the lengths are inconsistent, or exceed the model's context."""
    limit = writer.sampling.max_new_tokens
    if limit not in (None, num_tokens):
        raise ConfigError(
            f"policy.args.generation.max_new_tokens={limit} conflicts with world.num_tokens={num_tokens}, which sets "
            "the maximum number of tokens of a text: remove max_new_tokens"
        )
    check_room(writer, max_prompt_length, num_tokens)


def check_room(writer: TokenPolicy, prompt: int, text: int) -> None:
    """Raise `ConfigError` if a prompt and a text of these lengths exceed the model's context."""
    room = writer.lm.max_positions
    # An encoder-decoder reads the prompt in its encoder. The last token is never read.
    needed = max(prompt, text) if writer.lm.is_encoder_decoder else prompt + text - 1
    if room is not None and needed > room:
        raise ConfigError(
            f"a prompt of {prompt} tokens and a text of {text} exceed the model's {room} positions: lower "
            "world.max_prompt_length or world.num_tokens"
        )


def _figures(writing: Writing) -> list[dict[str, float]]:
    """Return the means over each text's tokens that RL4LMs logs."""
    lengths = writing.mask.sum(0)  # (num_texts,)
    quantities = {"log_prob": writing.log_probs, "value": writing.values, "kl": writing.kl}
    means = {name: ((x * writing.mask).sum(0) / lengths).tolist() for name, x in quantities.items() if x is not None}
    return [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)]
