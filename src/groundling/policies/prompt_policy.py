"""Policies that read a prompt and choose among the admissible actions."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from groundling.envs.text_env import TextObservation
from groundling.errors import ConfigError
from groundling.lm import LanguageModel, Prompts
from groundling.lm.read.prefix_tree import chains
from groundling.lm.write.sampling import Mask, MaskType
from groundling.policies.policy import Action, Evaluated, Outputs, Policy, Work
from groundling.policies.text_states import ConversationTokens
from groundling.prompts import Conversation, PromptReader


class Reference:
    """A frozen language model, or the policy's own with its LoRA adapters disabled, at no extra memory cost.

    It is not a submodule of the policy, so its weights are neither trained nor saved. Pass ``lm`` itself as
    ``reference`` to use its weights without adapters.
    """

    def __init__(self, reference: LanguageModel, lm: LanguageModel) -> None:
        self._has_adapters = reference is lm
        self._lm = lm if self._has_adapters else reference.requires_grad_(False)

    @property
    def language_model(self) -> LanguageModel | None:
        return None if self._has_adapters else self._lm

    @contextmanager
    def model(self) -> Iterator[LanguageModel]:
        """Yield the language model, with adapters disabled within the context."""
        if not self._has_adapters:
            yield self._lm
            return
        self._lm.model.disable_adapters()
        try:
            with self._lm.keeping():  # separate caches, because the adapters change the states
                yield self._lm
        finally:
            self._lm.model.enable_adapters()


class TokenMask:
    """Mixin that adds NLPO's mask (arXiv 2210.01241) to a policy: only tokens that are likely under a mask model, an
    older copy of the policy, are sampled. ``mask_lm`` is None without a mask, or if the policy is its own mask model.
    """

    lm: LanguageModel
    mask_lm: LanguageModel | None

    def make_mask(
        self, mask_type: MaskType | None, top_mask: float | None, min_tokens_to_keep: int | None
    ) -> Mask | None:
        """Create the mask and ``mask_lm`` from the policy's arguments; raise `ConfigError` if ``top_mask`` is invalid."""
        self.mask_lm = None
        if mask_type is None:
            return None
        share = mask_type == "learned_top_p"
        if top_mask is None and not share:
            raise ConfigError(f"mask_type={mask_type} needs policy.args.top_mask, the number of allowed tokens")
        top_mask = _TOP_P if top_mask is None else top_mask
        if (top_mask > 1) if share else (top_mask != int(top_mask)):
            wanted = "a probability, in (0, 1]" if share else "a number of tokens, at least 1"
            raise ConfigError(f"top_mask={top_mask} is invalid: with mask_type={mask_type} it must be {wanted}")
        if mask_type != "topk":
            self.mask_lm = self.lm.copy().requires_grad_(False)
        special = torch.tensor(sorted(self.lm.tokenizer.all_special_ids), dtype=torch.long, device=self.lm.device)
        return Mask(mask_type, top_mask, min_tokens_to_keep or _MIN_TOKENS, special)

    @torch.no_grad()
    def refresh_mask(self) -> None:
        """Copy the current policy into the mask model, if there is one."""
        if self.mask_lm is not None:
            for late, present in zip(self.mask_lm.parameters(), self.lm.parameters(), strict=True):
                late.copy_(present)

    def mask_files(self) -> dict[str, dict[str, Tensor]]:
        """Return the mask model's weights by file name, except those that are frozen in the policy."""
        if self.mask_lm is None:
            return {}
        trained = {name for name, parameter in self.lm.named_parameters() if parameter.requires_grad}
        weights = {name: parameter.detach() for name, parameter in self.mask_lm.named_parameters() if name in trained}
        return {"mask.safetensors": weights}


_CACHE_SIZE = 100_000
_TOP_P, _MIN_TOKENS = 0.9, 100  # Defaults for NLPO's mask: ``top_mask`` of a top-p mask, and ``min_tokens_to_keep``


class PromptPolicy(Policy):
    """A policy that reads only a prompt and the admissible actions; subclasses implement `forward`.

    Args:
        prompt: Id of a registered prompt. If several ids are passed, each episode uses one of them.
        language: Language of the prompt; the env must use the same language.
        replacements: Maps words of the prompt to their replacements (see `PromptReader`).
        system: Replaces the system prompt of a conversation.
    """

    needs = frozenset({"words"})

    def __init__(
        self,
        prompt: str | Sequence[str] = "glam",
        language: str = "english",
        replacements: Mapping[str, str] | None = None,
        system: str | None = None,
    ) -> None:
        super().__init__()
        self._reader = PromptReader(prompt, language, replacements, system)

    @abstractmethod
    def forward(self, observations: Sequence[TextObservation]) -> tuple[Tensor, Tensor]:
        """Return log-probabilities ``(batch, num_actions)`` and values ``(batch,)``, float32, with gradients.

        Rows shorter than the longest are padded with -inf.
        """

    def act(
        self,
        observations: Sequence[TextObservation],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        outputs = self.distributions(observations)
        return Action.choose(outputs.log_probs, outputs.values, deterministic=deterministic, generator=generator)

    def evaluate(self, observations: Sequence[TextObservation], actions: Tensor) -> Evaluated:
        log_probs, values = self(observations)
        return Evaluated.of(log_probs, actions, values)

    def values(self, observations: Sequence[TextObservation], memory: Tensor | None = None) -> Tensor:
        return self.distributions(observations).values

    def outputs(self, observations: Sequence[TextObservation]) -> Outputs | None:
        return self.distributions(observations)

    @torch.no_grad()
    def distributions(self, observations: Sequence[TextObservation]) -> Outputs:
        """Call `forward` without gradients; plain-text prompts are cached while the weights are `unchanged`."""
        prompts = [] if self._cache is None else self.read(observations)
        if self._cache is None or not all(isinstance(prompt, str) for prompt in prompts):
            return Outputs(*self(observations))  # conversations rarely recur
        keys = [(prompt, o.actions) for prompt, o in zip(prompts, observations, strict=True)]
        if len(self._cache) > _CACHE_SIZE:
            self._cache.clear()
        new = {key: o for key, o in zip(keys, observations, strict=True) if key not in self._cache}
        if new:
            self._cache.update(zip(new, zip(*self(list(new.values())), strict=True), strict=True))
        rows = [self._cache[key] for key in keys]
        return Outputs(
            # Rows are as long as the longest list of actions in the call that computed them.
            pad_sequence([row for row, _ in rows], batch_first=True, padding_value=-torch.inf),
            torch.stack([value for _, value in rows]),
        )

    def read(self, observations: Sequence[TextObservation], prompts: Sequence[str] | None = None) -> Prompts:
        """Return prompts as strings, or token ids of conversations; ``prompts`` overrides each episode's prompt id."""
        ids: Sequence[str | None] = prompts or [None] * len(observations)
        return [str(self._reader.read(o, id)) for o, id in zip(observations, ids, strict=True)]

    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [str(prompt) for prompt in self.read(observations)]


class LanguageModelPolicy(PromptPolicy):
    """A policy that reads prompts with a language model, whose states are also the input of the value head.

    Args:
        lm: The language model; its weights are part of the policy. Conversations are formatted with its chat template.
        prompt, language, replacements, system: See `PromptPolicy`.

    Attributes:
        value_head: Maps float32 states ``(batch, hidden_size)`` to values ``(batch,)``; created by the subclass.
        answer_tokens: Number of tokens to reserve for the answer after a conversation.
    """

    has_value_head: ClassVar[bool] = True
    value_head: nn.Module

    def __init__(self, lm: LanguageModel, *prompt: Any) -> None:
        super().__init__(*prompt)
        self.lm = lm
        self.answer_tokens = 0
        self._conversations: ConversationTokens | None = None
        self._kept_bytes = 0  # at the end of the last `unchanged` context

    def read(self, observations: Sequence[TextObservation], prompts: Sequence[str] | None = None) -> Prompts:
        ids: Sequence[str | None] = prompts or [None] * len(observations)
        read = list[str | Conversation]()
        for observation, id in zip(observations, ids, strict=True):
            prompt = self._reader.read(observation, id)
            if isinstance(prompt, str) and self.lm.mask(prompt) != prompt:  # conversations are encoded as text
                # Control tokens spelled out in the world's text are masked; those of the prompt itself are kept.
                prompt = self._reader.read(observation.changed(self.lm.mask), id)
            read.append(prompt)
        texts = [one for one in read if isinstance(one, str)]
        if texts:
            return texts
        if self._conversations is None:
            self._conversations = ConversationTokens(self.lm, self.answer_tokens)
        return [self._conversations(one) for one in read if isinstance(one, Conversation)]

    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [
            self.lm.unmask(prompt) if isinstance(prompt, str) else str(self.lm.tokenizer.decode(prompt))
            for prompt in self.read(observations)
        ]

    def states(self, prompts: Prompts) -> Tensor:
        """Return the states from which values are computed, float32 ``(num_prompts, hidden_size)``, with gradients."""
        with self.lm.autocast():
            return self.lm.encode(prompts)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        try:
            with super().unchanged(), self.lm.keeping():
                yield
        finally:
            self._kept_bytes = self.lm.kept_bytes

    def figures(self) -> dict[str, float]:
        """Return ``kept_mib``: the size of cached conversations in this process, in MiB."""
        return {"kept_mib": round(self._kept_bytes / 2**20, 3)} if self._kept_bytes else {}

    def work(self, observations: Sequence[TextObservation]) -> Sequence[Work]:
        prompts = self.read(observations)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if texts:
            return [Work(size, text) for size, text in zip(self.lm.token_lengths(texts), texts, strict=True)]
        tokens = [prompt for prompt in prompts if not isinstance(prompt, str)]
        numbers = {index: number for number, chain in enumerate(chains(tokens)) for index in chain}
        return [Work(len(ids), numbers[index], numbers[index]) for index, ids in enumerate(tokens)]

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        return {"value_head.safetensors": self.value_head.state_dict()}
