"""Rollouts of texts: the policy writes to a pool's prompts, or reads the pool's references."""

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.algorithms.rollout import Rollout
from groundling.envs.text_generation import Sample, SampleOrder
from groundling.envs.text_generation.prompts import Side, encode_prompts
from groundling.errors import ConfigError, GroundlingError
from groundling.lm import LanguageModel
from groundling.policies.policy import Policy
from groundling.policies.texts import TokenPrompt, Writing, Written
from groundling.policies.token import TokenPolicy
from groundling.rewards import RewardSum, Stretch, Texts
from groundling.tokenization.chat import Chat
from groundling.tokenization.encoding import TextEncoder
from groundling.tokenization.end_tokens import EndTokens
from groundling.worlds.collector import Collector
from groundling.worlds.episode import Episode


class PromptEncoder:
    """Samples' prompts as a language model reads them.

    Args:
        tokenizer: The model's; one without padding token pads with its end token, which masks tell apart.
        max_prompt_length: In tokens; longer prompts are cut.
        prompt_truncation_side: Where: "left" keeps a prompt's end, "right" its beginning.
        chat: By whose template a prompt is what a user says; None: it is read as it is.
        system: The system prompt of such a conversation.
        ends: End tokens of the model; None: those of its tokenizer.
        add_special_tokens: Add the tokenizer's special tokens to plain prompts.

    Attributes:
        end_token: Ends an answer in training data: that of a turn with ``chat``, else that of a text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_prompt_length: int = 128,
        prompt_truncation_side: Side = "left",
        chat: Chat | None = None,
        system: str | None = None,
        ends: EndTokens | None = None,
        add_special_tokens: bool = True,
    ) -> None:
        ends = ends or EndTokens.of(tokenizer)
        self.end_token = ends.of_text if chat is None else ends.of_turn
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.tokenizer, self.max_prompt_length, self._side = (
            tokenizer,
            max_prompt_length,
            prompt_truncation_side,
        )
        self._chat, self._system, self._add_special_tokens = chat, system, add_special_tokens
        self._words = TextEncoder(tokenizer)

    def __call__(self, samples: Sequence[Sample]) -> list[TokenPrompt]:
        """Token ids of each prompt.

        Raises:
            GroundlingError: a prompt is empty.
            ConfigError: there is no room for one in its conversation.
        """
        if self._chat is not None:
            room, side = self.max_prompt_length, self._side
            try:
                prompts = [
                    self._chat.conversation(
                        self._system if s.system is None else s.system, s.earlier, s.prompt, room, side
                    )
                    for s in samples
                ]
            except GroundlingError as error:
                raise ConfigError(f"{error}: raise world.max_prompt_length") from error
            return [TokenPrompt(tuple(ids)) for ids in prompts]
        for sample in samples:
            if sample.earlier or sample.system is not None:
                raise ConfigError(
                    f"sample {sample.id} is a conversation, which needs a chat template: set world.chat=true"
                )
        encoded = encode_prompts(
            samples, self.tokenizer, self.max_prompt_length, self._side, self._add_special_tokens
        )
        return TokenPrompt.unpad(*encoded)

    def of_pool(self, sample: Sample) -> set[str] | None:
        """Control tokens that a pool writes into its prompts; None if it does not say what comes from a dataset."""
        if not sample.data:
            return None
        return self._words.spelled(self._words.mask_parts(sample.prompt, sample.data))

    def target(self, text: str, has_decoder: bool, of_pool: Collection[str] | None = None) -> list[int]:
        """Token ids of a text to be written to a prompt, without an end token unless a decoder's tokenizer adds it.

        Args:
            text: A reference. Control tokens that it spells are read as plain text, with a warning.
            has_decoder: Whether the model is an encoder-decoder.
            of_pool: Control tokens that are read as such all the same; None: all.
        """
        if self._chat is not None and not has_decoder:
            return [*self._chat.lead, *self._chat.answers([text])[0]]
        if of_pool is not None and (spelled := self._words.spelled(text).difference(of_pool)):
            warnings.warn(
                f"references of the pool spell control tokens ({', '.join(sorted(spelled))}), which are learnt as "
                "plain text: leave them out; each reference is followed by the end token",
                stacklevel=2,
            )
            return self._words.encode(self._words.mask(text, of_pool), special_tokens=has_decoder)
        return list(self.tokenizer(text_target=text, add_special_tokens=has_decoder)["input_ids"])


class _PoolCollector(Collector):
    """What both kinds have: a place in an order of samples, of whose texts this process has its own."""

    def __init__(
        self, order: SampleOrder, encode: PromptEncoder, num_texts: int, local_rows: slice, num_tokens: int
    ) -> None:
        self._order, self._encode, self._local_rows = order, encode, local_rows
        self._num_texts, self._num_tokens = num_texts, num_tokens

    def state_dict(self) -> list[dict[str, Any]]:
        return [self._order.state_dict()] * (self._local_rows.stop - self._local_rows.start)

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._order.load_state_dict(states[0])


class WrittenTexts(_PoolCollector):
    """Lets a policy write ``num_texts`` texts a rollout, and rewards them.

    Args:
        order: Of the prompts.
        encode: Reads them.
        reward: Of the texts, ready to be asked.
        num_texts: Texts of a rollout, of all processes together.
        local_rows: Which of them this process writes.
        num_tokens: Tokens of a text at most.
        texts_per_prompt: How many texts are written to each prompt: a group, for RLOO and GRPO; divides ``num_texts``.
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
        self._reward, self._group_size = reward, texts_per_prompt
        self._episodes: list[Episode] = []  # of the last rollout

    @torch.no_grad()
    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Episode]]:
        """Texts to the next prompts.

        Raises:
            ConfigError: the policy does not write.
            RunError: a reward is missing or not finite.
        """
        writer = as_writer(policy)
        drawn = self._order.draw(self._num_texts // self._group_size)
        everyones = [sample for sample in drawn for _ in range(self._group_size)]
        samples = everyones[self._local_rows]
        # Drawn for all processes, so that a text does not depend on who writes it.
        uniforms = torch.rand(self._num_texts, self._num_tokens, dtype=torch.float64, generator=generator)
        prompts = self._encode(samples)
        writing = writer.write(prompts, uniforms[self._local_rows], self._num_tokens)
        rows = [ids.tolist() for ids in writing.token_ids()]
        texts = texts_so_far(writer.lm, prompts, rows, self._reward.per_token)
        rewarded = self._reward(stretch_of(samples, texts, rows))  # (longest, num_texts)
        nothing = torch.zeros(writing.mask.shape)  # (num_tokens, num_texts)
        rollout = Rollout(
            observations=writing.observations,
            actions=writing.actions,
            log_probs=writing.log_probs,
            values=nothing if writing.values is None else writing.values,
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
                record={
                    "sample_id": sample.id,
                    "prompt": sample.prompt,
                    "generation": text[-1],
                    "reward": total,
                },
            )
            for sample, text, total, figures in zip(samples, texts, totals, _figures(writing), strict=True)
        ]
        return rollout, list(self._episodes)

    def samples(self) -> list[dict[str, Any]]:
        return [episode.record for episode in self._episodes]

    def incidents(self) -> dict[str, int]:
        return self._reward.figures()

    def save_shared(self, folder: Path) -> None:
        self._reward.save(folder)

    def load_shared(self, folder: Path) -> None:
        self._reward.load(folder)

    def close(self) -> None:
        self._reward.close()


class References(_PoolCollector):
    """Gives a pool's references as rollouts, as if the policy had written them: supervised training.

    Args:
        order: Of the samples; one with several references gives another of them each time it comes.
        encode: Reads the prompts.
        num_texts: Texts of a rollout, of all processes together.
        local_rows: Which of them this process reads.
        num_tokens: Tokens of a text at most, its end token included; longer ones are cut, and do not end.
        has_decoder: Whether the model is an encoder-decoder: it learns the special tokens, too, that its tokenizer
            puts around targets (BART's ``<s>``, T5's ``</s>``).

    Raises:
        ConfigError: a sample has no reference, or the model no end token.
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
        self._of_pool = encode.of_pool(order.samples[0])  # a pool builds all its prompts alike

    def collect(
        self,
        policy: Policy,
        *,
        generator: torch.Generator,
        on_step: Callable[[int], None] = lambda transitions: None,
    ) -> tuple[Rollout, list[Episode]]:
        """The next samples' references; values and log-probabilities are 0.

        With `in_passes`, columns past the end of the pass repeat its last text and are masked.

        Raises:
            ConfigError: the policy does not write, or its model has no room for a prompt and its reference.
        """
        writer = as_writer(policy)
        first, total = self._order.drawn, len(self._order.samples)
        count = min(self._num_texts, total - first % total) if self._by_pass else self._num_texts
        drawn = self._order.draw(count)
        drawn += drawn[-1:] * (self._num_texts - count)
        turn = [(first + min(k, count - 1)) // total for k in range(self._num_texts)]
        texts = [s.references[t % len(s.references)] for s, t in zip(drawn, turn, strict=True)][
            self._local_rows
        ]
        prompts = self._encode(drawn[self._local_rows])
        tokens = [self._tokens(text) for text in texts]
        for prompt, ids in zip(prompts, tokens, strict=True):
            _check_room(writer, len(prompt.ids), len(ids))
        actions = torch.zeros(len(tokens), self._num_tokens, dtype=torch.int64)  # (num_texts, num_tokens)
        for row, ids in zip(actions, tokens, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        lengths = torch.tensor([len(ids) for ids in tokens])[:, None]
        counts = torch.arange(self._num_texts)[self._local_rows, None] < count  # (num_texts, 1)
        mask = ((torch.arange(self._num_tokens) < lengths) & counts).T  # (num_tokens, num_texts)
        nothing = torch.zeros(mask.shape)
        rollout = Rollout(
            observations=[Written(p.ids, len(t), None) for p, t in zip(prompts, tokens, strict=True)],
            actions=actions.T.contiguous(),
            log_probs=nothing,
            values=nothing,
            rewards=nothing,
            dones=(torch.arange(self._num_tokens) == lengths - 1).T,
            last_values=torch.zeros(len(tokens)),
            last_observations=[],
            sequences=True,
            mask=mask,
        )
        on_step(rollout.num_transitions)
        return rollout, []

    def in_passes(self, epochs: int) -> tuple[int, int]:
        """See `Collector.in_passes`; a step is a token.

        Every reference is tokenized, which takes half a minute for some 100,000.
        """
        self._by_pass = True
        samples = self._order.samples
        texts = [s.references[turn % len(s.references)] for turn in range(epochs) for s in samples]
        lengths = {text: len(self._tokens(text)) for text in set(texts)}
        return sum(lengths[text] for text in texts), epochs * math.ceil(len(samples) / self._num_texts)

    def _tokens(self, text: str) -> list[int]:
        tokenizer = self._encode.tokenizer
        ids = self._encode.target(text, self._has_decoder, self._of_pool)
        last = ids[-2:] if self._has_decoder else []  # mBART writes the language after its end token
        if tokenizer.eos_token_id in last:
            ids[-2:] = [self._end_token if token == tokenizer.eos_token_id else token for token in last]
        else:
            ids.append(self._end_token)
        return ids[: self._num_tokens]


def texts_so_far(
    lm: LanguageModel, prompts: Sequence[TokenPrompt], rows: Sequence[Sequence[int]], per_token: bool
) -> list[list[str]]:
    """The text after each token of each row; unless ``per_token``, empty but for the last token's.

    Args:
        lm: The model that wrote.
        prompts: Prompts of the rows.
        rows: Token ids of the generations.
        per_token: Whether every token is rewarded, or whole texts.
    """
    texts = []
    for prompt, row in zip(prompts, rows, strict=True):
        written = lm.continuation(prompt.ids)
        texts.append(
            [written.append(token) for token in row]
            if per_token
            else [""] * (len(row) - 1) + [written.append(*row)]
        )
    return texts


def stretch_of(
    samples: Sequence[Sample], texts: Sequence[Sequence[str]], tokens: Sequence[Sequence[int]] = ()
) -> Stretch:
    """Texts written to samples, as rewards read them; ``texts`` as of `texts_so_far`, ``tokens`` their ids."""
    return Stretch.of_texts(
        Texts(
            [sample.prompt for sample in samples],
            texts,
            [list(sample.references) for sample in samples],
            [dict(sample.meta) for sample in samples],
            tokens,
        )
    )


def _padded(rewards: Tensor, num_tokens: int) -> Tensor:
    """``(longest, num_texts)`` as ``(num_tokens, num_texts)``."""
    return torch.nn.functional.pad(rewards, (0, 0, 0, num_tokens - len(rewards)))


def as_writer(policy: Policy) -> TokenPolicy:
    """The policy, if it is one that writes.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(f"{type(policy).__name__} does not write texts: set policy.id=token for a pool")
    return policy


def check_lengths(writer: TokenPolicy, max_prompt_length: int, num_tokens: int) -> None:
    """Raise `ConfigError` where texts of ``num_tokens`` to such prompts cannot be written, or are not what is meant."""
    limit = writer.sampling.max_new_tokens
    if limit not in (None, num_tokens):
        raise ConfigError(
            f"policy.args.generation.max_new_tokens={limit}, but world.num_tokens={num_tokens} sets how many tokens "
            "a text has at most: leave max_new_tokens out"
        )
    _check_room(writer, max_prompt_length, num_tokens)


def _check_room(writer: TokenPolicy, prompt: int, text: int) -> None:
    """Raise `ConfigError` if the model cannot read so many tokens of a prompt and write so many."""
    room = writer.lm.max_positions
    # An encoder-decoder reads the prompt elsewhere; the last token is never read.
    needed = max(prompt, text) if writer.lm.is_encoder_decoder else prompt + text - 1
    if room is not None and needed > room:
        raise ConfigError(
            f"a prompt of {prompt} tokens and a text of {text} are more than the model's {room} positions: lower "
            "world.max_prompt_length or world.num_tokens"
        )


def _figures(writing: Writing) -> list[dict[str, float]]:
    """What RL4LMs logs of each text beside its reward and length: means over its tokens."""
    lengths = writing.mask.sum(0)  # (num_texts,)
    quantities = {"log_prob": writing.log_probs, "value": writing.values, "kl": writing.kl}
    means = {
        name: ((x * writing.mask).sum(0) / lengths).tolist()
        for name, x in quantities.items()
        if x is not None
    }
    return [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)]
