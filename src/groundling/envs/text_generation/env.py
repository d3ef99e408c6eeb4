"""The token MDP: actions are tokens, and episodes are texts (Ramamurthy et al. 2022, arXiv 2210.01241)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from groundling.envs.text_generation.pools import Sample
from groundling.envs.text_generation.prompts import Side, encode_prompts, padding_id
from groundling.errors import ConfigError, GroundlingError
from groundling.registry import taken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Observation = dict[str, np.ndarray]
_KINDS = ("ids", "mask")


class TextGenerationEnv(gymnasium.Env[Observation, int]):
    """Writes a text to a prompt, one token a step.

    An observation has token ids and 0/1 masks, int64, padded on the left: of the prompt (``prompt_ids``,
    ``prompt_mask``), of the text so far (``context_ids``, ``context_mask``), and of both (``input_ids``,
    ``input_mask``). The info has ``sample_id``, ``prompt_text``, ``references``, ``meta``, ``actions`` (the tokens so
    far) and ``context_text`` without special tokens: at the end, and at every step with a reward per token or
    `decode_every_step`.

    An episode ends, always as terminated, with an end token or at `max_episode_length`: the length belongs to the
    task, so nothing is bootstrapped.

    Args:
        samples: Samples, drawn uniformly with replacement; ``reset(options={"sample": …})`` sets one.
        tokenizer: The model's tokenizer, with a padding token.
        reward: Reward of a finished text or of every token, such as `groundling.rewards.create` makes; None: 0.
        max_prompt_length: Tokens of a prompt; longer ones are truncated.
        max_episode_length: Tokens of a text.
        prompt_truncation_side: Side on which long prompts are truncated.
        terminate_on_eos: An end token ends a text.
        end_tokens: Token ids that end a text; None: those of the tokenizer and its chat template. A model's generation
            config may have more (`groundling.LanguageModel.end_tokens`).
        context_start_token: First token of an encoder-decoder's decoder; part of the context, but not an action. A
            policy that reads these observations needs the same ``policy.args.context_start_token``.
        num_actions: Size of the vocabulary of the model's logits, which may be padded; None: the tokenizer's.
        decode_every_step: Add ``context_text`` to the info at every step.

    Raises:
        ConfigError: Invalid arguments.
        GroundlingError: A tokenizer without padding token; later an empty prompt, an invalid action, or a reward that
            is not a number.
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
        if max_prompt_length < 1 or max_episode_length < 1:
            raise ConfigError(
                f"max_prompt_length={max_prompt_length} and max_episode_length={max_episode_length} must be at least 1"
            )
        if end_tokens is None:
            from groundling.tokenization.encoding import EndTokens  # slow to import

            end_tokens = EndTokens.of(tokenizer).ids
        if terminate_on_eos and not end_tokens:
            raise ConfigError("the tokenizer has no end token: give end_tokens, or terminate_on_eos=false")
        if isinstance(reward, str):
            raise ConfigError(f"reward={reward!r} is a name: give groundling.rewards.create({reward!r})")
        self.reward = reward
        self._per_token = bool(getattr(self.reward, "per_token", False))
        if self._per_token and not hasattr(self.reward, "at_token"):
            raise ConfigError(
                f"{type(self.reward).__name__} rewards tokens but has no at_token: it cannot be asked step by step"
            )
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
                for kind, high in zip(_KINDS, (largest, 1), strict=True)
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a text to ``options["sample"]``, or to a drawn sample."""
        super().reset(seed=seed)
        given = (options or {}).get("sample")
        self.sample: Sample = given or self.samples[int(self.np_random.integers(len(self.samples)))]
        ids, mask = encode_prompts([self.sample], self.tokenizer, self.max_prompt_length, self.prompt_truncation_side)
        from groundling.tokenization.detokenize import Continuation  # slow to import

        self._prompt_ids, self._prompt_mask = ids[0].numpy(), mask[0].numpy()
        start = [] if self.context_start_token is None else [self.context_start_token]
        prompt = self._prompt_ids[self._prompt_mask == 1].tolist()
        self._written = Continuation(self.tokenizer, () if start else prompt)
        steps, size = self.max_episode_length, self.max_prompt_length + self.max_episode_length
        self._context = _Window(start, steps, steps, self._filler)
        self._input = _Window(prompt + start, size, steps, self._filler)
        self._actions = np.zeros(steps, np.int64)
        self._steps, self._decoded, self._done, self._text = 0, 0, False, ""
        return self._observation(), self._info(self._text if self._decodes else None)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._done:
            raise GroundlingError("the text is finished: reset the env before the next step")
        token = int(action)
        if not 0 <= token < self.num_actions:
            raise GroundlingError(f"action {token} is no token: give one from 0 to {self.num_actions - 1}")
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
            rewards = self.reward([sample.prompt], [self._text], [references], meta=[meta])
            if len(rewards) != 1:
                raise GroundlingError(f"the reward gave {len(rewards)} numbers for one text: it must give one")
            reward = float(rewards[0])
        if not math.isfinite(reward):
            raise GroundlingError(f"the reward of sample {sample.id} is {reward}: it must be a finite number")
        return reward

    def _observation(self) -> Observation:
        parts = {
            "prompt": (self._prompt_ids.copy(), self._prompt_mask.copy()),
            "context": self._context.seen(),
            "input": self._input.seen(),
        }
        return {
            f"{name}_{kind}": array for name, part in parts.items() for kind, array in zip(_KINDS, part, strict=True)
        }

    def _info(self, text: str | None) -> dict[str, Any]:
        info = {
            "sample_id": self.sample.id,
            "prompt_text": self.sample.prompt,
            "references": self.sample.references,
            "meta": self.sample.meta,
            "actions": self._actions[: self._steps].copy(),
        }
        return info if text is None else info | {"context_text": text}


class _Window:
    """The last tokens of a growing text in an array, after padding of the window's length; a step moves it by one."""

    def __init__(self, tokens: Sequence[int], length: int, room: int, filler: int) -> None:
        self._ids = np.full(length + len(tokens) + room, filler, np.int64)
        self._ids[length : length + len(tokens)] = tokens
        self._mask = (np.arange(len(self._ids)) >= length).astype(np.int64)
        self._length, self._end = length, length + len(tokens)

    def append(self, token: int) -> None:
        self._ids[self._end] = token
        self._end += 1

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and mask, int64 ``(length,)``."""
        window = slice(self._end - self._length, self._end)
        return self._ids[window].copy(), self._mask[window].copy()
