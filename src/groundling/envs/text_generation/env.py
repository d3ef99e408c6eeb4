"""The token MDP: actions are tokens, and episodes are generated texts (Ramamurthy et al. 2023, arXiv 2210.01241).

`encode_prompts` turns prompts into padded token ids, for the env and for batched sampling.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from groundling.envs.text_generation.pools import Sample
from groundling.errors import ConfigError, RunError, warn_caller
from groundling.registry import taken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Observation = dict[str, np.ndarray]
Side = Literal["left", "right"]


class TextGenerationEnv(gymnasium.Env[Observation, int]):
    """An env in which the agent completes a prompt, one token per step.

    An observation contains left-padded int64 token ids and 0/1 masks for the prompt (``prompt_ids``, ``prompt_mask``),
    the completion so far (``context_…``), and the two concatenated (``input_…``). The info contains ``sample_id``,
    ``prompt_text``, ``references``, ``meta``, ``actions`` (the tokens so far) and, at the end of an episode or with a
    per-token reward, ``context_text`` without special tokens. An episode ends with an end token or at
    ``max_episode_length``. Both count as termination, not truncation, since the maximum length is part of the task.

    Args:
        samples: Samples, drawn uniformly with replacement; ``reset(options={"sample": …})`` selects a specific one.
        tokenizer: The model's tokenizer, with a padding token.
        reward: Reward for a finished completion or for each token, from `groundling.rewards.create`; None means 0.
        max_prompt_length: Maximum number of tokens in a prompt; longer prompts are truncated.
        max_episode_length: Maximum number of tokens in a completion.
        prompt_truncation_side: Side on which long prompts are truncated.
        terminate_on_eos: End the completion at an end token.
        end_tokens: Token ids that end a completion; by default, those of the tokenizer and its chat template. A
            model's generation config may define more (`groundling.LanguageModel.end_tokens`).
        context_start_token: Start token of an encoder-decoder's decoder; it is part of the context, but not an action.
            Set ``policy.args.context_start_token`` to the same token.
        num_actions: Number of the model's logits, including any padding; by default, the tokenizer's vocabulary size.
        decode_every_step: Add ``context_text`` to the info at every step.

    Raises:
        ConfigError: The arguments are invalid.
        GroundlingError: There is no padding token, or a prompt, action or reward is invalid in `reset` or `step`.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        tokenizer: PreTrainedTokenizerBase,
        reward: Any = None,
        *,
        max_prompt_length: int = 128,
        max_episode_length: int = 32,
        prompt_truncation_side: Side = "left",
        terminate_on_eos: bool = True,
        end_tokens: Collection[int] | None = None,
        context_start_token: int | None = None,
        num_actions: int | None = None,
        decode_every_step: bool = False,
    ) -> None:
        if not len(samples):
            raise ConfigError("there are no samples: prepare a pool's split first")
        if end_tokens is None:
            from groundling.tokenization.encoding import EndTokens  # slow to import

            end_tokens = EndTokens.of(tokenizer).ids
        if terminate_on_eos and not end_tokens:
            raise ConfigError("the tokenizer has no end token: set end_tokens, or terminate_on_eos=false")
        self.reward = reward
        self._per_token = bool(getattr(reward, "per_token", False))
        self.samples, self.tokenizer = samples, tokenizer
        self.max_prompt_length, self.max_episode_length = max_prompt_length, max_episode_length
        self.prompt_truncation_side: Side = prompt_truncation_side
        self.end_tokens = frozenset(end_tokens if terminate_on_eos else ())
        self.context_start_token = context_start_token
        self._decodes = decode_every_step or self._per_token
        self._filler = padding_id(tokenizer)
        self._done = True
        self.num_actions = num_actions = len(tokenizer) if num_actions is None else num_actions
        self.action_space: Any = gymnasium.spaces.Discrete(num_actions)
        whole = max_prompt_length + max_episode_length
        lengths = {"prompt": max_prompt_length, "context": max_episode_length, "input": whole}
        largest = max(num_actions, len(tokenizer)) - 1
        self.observation_space = gymnasium.spaces.Dict(
            {
                f"{name}_{kind}": gymnasium.spaces.Box(0, high, (length,), np.int64)
                for name, length in lengths.items()
                for kind, high in (("ids", largest), ("mask", 1))
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a completion for ``options["sample"]``, or for a randomly drawn sample."""
        super().reset(seed=seed)
        given = (options or {}).get("sample")
        self.sample: Sample = given or self.samples[int(self.np_random.integers(len(self.samples)))]
        ids, mask = encode_prompts([self.sample], self.tokenizer, self.max_prompt_length, self.prompt_truncation_side)
        from groundling.tokenization.detokenize import Continuation  # slow to import

        self._prompt_ids, self._prompt_mask = ids[0].numpy(), mask[0].numpy()
        start = [] if self.context_start_token is None else [self.context_start_token]
        prompt = self._prompt_ids[self._prompt_mask == 1].tolist()
        self._written = Continuation(self.tokenizer, () if start else prompt)
        self._context, self._input = list(start), prompt + start
        self._actions = np.zeros(self.max_episode_length, np.int64)
        self._steps, self._decoded, self._done, self._text = 0, 0, False, ""
        return self._observation(), self._info(self._text if self._decodes else None)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._done:
            raise RunError("the episode has ended: reset the env before the next step")
        token = int(action)
        if not 0 <= token < self.num_actions:
            raise RunError(f"action {token} is not a token: expected an id from 0 to {self.num_actions - 1}")
        self._context.append(token)
        self._input.append(token)
        self._actions[self._steps] = token
        self._steps += 1
        self._done = token in self.end_tokens or self._steps == self.max_episode_length
        previous, text = self._text, None
        if self._decodes or self._done:
            text = self._text = self._written.append(*self._actions[self._decoded : self._steps].tolist())
            self._decoded = self._steps
        reward = self._reward(previous)
        return self._observation(), reward, self._done, False, self._info(text)

    def _reward(self, previous: str) -> float:
        if self.reward is None or not (self._per_token or self._done):
            return 0.0
        sample = self.sample
        references, meta = list(sample.references), dict(sample.meta)
        if self._per_token:
            args = (sample.prompt, previous, self._text, self._done, references, meta)
            tokens = self._actions[: self._steps].tolist()
            ids = taken(self.reward.at_token, {"action": tokens[-1], "tokens": tokens})
            reward = float(self.reward.at_token(*args, **ids))
        else:
            (reward,) = map(float, self.reward([sample.prompt], [self._text], [references], meta=[meta]))
        if not math.isfinite(reward):
            raise RunError(f"the reward of sample {sample.id} is {reward}: expected a finite number")
        return reward

    def _observation(self) -> Observation:
        observation = {"prompt_ids": self._prompt_ids.copy(), "prompt_mask": self._prompt_mask.copy()}
        whole = self.max_prompt_length + self.max_episode_length
        parts = ("context", self._context, self.max_episode_length), ("input", self._input, whole)
        for name, tokens, length in parts:
            ids, mask = np.full(length, self._filler, np.int64), np.zeros(length, np.int64)
            if kept := tokens[-length:]:
                ids[-len(kept) :], mask[-len(kept) :] = kept, 1
            observation |= {f"{name}_ids": ids, f"{name}_mask": mask}
        return observation

    def _info(self, text: str | None) -> dict[str, Any]:
        info = {
            "sample_id": self.sample.id,
            "prompt_text": self.sample.prompt,
            "references": self.sample.references,
            "meta": self.sample.meta,
            "actions": self._actions[: self._steps].copy(),
        }
        return info if text is None else info | {"context_text": text}


def encode_prompts(
    samples: Sequence[Sample],
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_length: int,
    truncation_side: Side = "left",
    add_special_tokens: bool = True,
) -> tuple[Tensor, Tensor]:
    """Tokenize prompts with left padding; return ids and 0/1 masks, int64 ``(len(samples), max_prompt_length)``.

    Longer prompts are truncated with a warning; special tokens are kept. With ``truncation_side="left"``, the end of a
    prompt is kept; with ``"right"``, its beginning.

    Raises:
        ConfigError: The maximum length leaves no room for a prompt.
        GroundlingError: A prompt is empty, or the tokenizer has no padding token.
    """
    specials = tokenizer.num_special_tokens_to_add() if add_special_tokens else 0
    if max_prompt_length <= specials:
        raise ConfigError(
            f"max_prompt_length={max_prompt_length}: a prompt needs at least 1 token in addition to the {specials} "
            "special tokens that the tokenizer adds"
        )
    padding_id(tokenizer)
    side_before, tokenizer.truncation_side = tokenizer.truncation_side, truncation_side
    try:
        encoded = tokenizer(
            [sample.prompt for sample in samples],
            add_special_tokens=add_special_tokens,
            padding="max_length",
            padding_side="left",
            truncation=True,
            max_length=max_prompt_length,
            return_attention_mask=True,
            return_tensors="pt",
        )
    finally:
        tokenizer.truncation_side = side_before
    if any(one.overflowing for one in encoded.encodings or ()):  # only fast tokenizers have encodings
        warn_caller(
            f"prompts of more than {max_prompt_length} tokens are truncated on the {truncation_side}: raise "
            "world.max_prompt_length to keep them whole"
        )
    ids, mask = encoded["input_ids"].long(), encoded["attention_mask"].long()
    if any(sample.data for sample in samples):
        _read_data_as_text(samples, tokenizer, truncation_side, ids, mask)
    empty = (mask.sum(1) <= specials).nonzero()
    if len(empty):
        raise ConfigError(
            f"sample {samples[int(empty[0])].id} has an empty prompt: fill it in, or remove the sample from the pool"
        )
    return ids, mask


def _read_data_as_text(
    samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, side: Side, ids: Tensor, mask: Tensor
) -> None:
    """Re-encode control tokens in the prompts' data as plain text; ``ids`` and ``mask`` are changed in place."""
    from groundling.tokenization.encoding import TextEncoder  # slow to import

    encoder = TextEncoder(tokenizer)
    for row, sample in enumerate(samples):
        if spelled := set().union(*map(encoder.spelled, sample.data)):
            warn_caller(
                f"the pool's data contains control tokens ({', '.join(sorted(spelled))}), encoded as plain text: put "
                "a template's control tokens in prompt_prefix and prompt_suffix, or set world.chat=true"
            )
            text = encoder.mask_parts(sample.prompt, sample.data)
            plain = torch.tensor(encoder.encode(text, True, ids.shape[1], side))
            ids[row], mask[row] = padding_id(tokenizer), 0
            ids[row, -len(plain) :], mask[row, -len(plain) :] = plain, 1


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            "the tokenizer has no padding token: set tokenizer.pad_token to its end token or any other token of its "
            "vocabulary (the attention mask marks padding), and save it with tokenizer.save_pretrained(MODEL_FOLDER)"
        )
    return int(tokenizer.pad_token_id)
