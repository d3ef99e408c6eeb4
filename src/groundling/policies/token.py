"""A language model that generates texts: each token is an action, each text an episode (RL4LMs, arXiv 2210.01241)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import ConfigError, RunError, unknown, warn_caller
from groundling.fields import OnlyWith
from groundling.lm import LanguageModel, ValueHead
from groundling.lm.read.causal import WORTH_SHARING
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling, allowed_tokens
from groundling.policies import arguments
from groundling.policies.policy import Action, Evaluated, Policy, Work, policies
from groundling.policies.prompt_policy import Reference, TokenMask
from groundling.policies.text_states import Sequences, TokenPrompt, Writing, Written, read_states, scatter

_TEXTS = 16  # Number of texts whose log-probabilities the reference computes at once
_ROWS = 1024  # Number of tokens whose logits the reference computes at once: 0.5 GB with a vocabulary of 128,000


@policies.register("token")
class TokenPolicy(TokenMask, Policy):
    """π(token | prompt, text so far): the distribution from which the language model's tokens are sampled.

    Log-probabilities are those of the *sampling* distribution: after temperature, top-k, top-p, the ban on early end
    tokens, and NLPO's mask. PPO's ratio is correct only if its denominator is the token's sampling probability.
    The tokens that passed the filters and the mask are stored with each token, and the current policy is restricted to
    them. If it computed a new set, it could exclude the sampled token, whose ratio would then be undefined.

    Args:
        lm: The language model; its weights are part of the policy.
        reference: The frozen language model for the KL penalty. Pass ``lm`` itself to use its weights without the LoRA
            adapters, at no extra memory cost. If None, there is no penalty.
        value: Source of the values: "separate", a trained copy of ``lm``, as in RL4LMs; "lora", a separate LoRA
            adapter on the policy's frozen weights or on ``value_base``; or "shared", the policy's hidden states.
        value_base: The frozen language model to which the "lora" adapter is added if all of the policy's weights are
            trained; in a run, the initial policy. If None, the reference is used.
        value_lora: Keyword arguments of `peft.LoraConfig` for "lora". If empty, the policy's adapter is copied, or
            peft's defaults are used if all of the policy's weights are trained.
        value_hidden_sizes: Widths of the value head's hidden layers; RL4LMs has no hidden layers.
        value_bias: Add a bias to the value head's last layer, unlike RL4LMs.
        critic: If False, there is no value function and all values are 0; for algorithms that need no values.
        generation: Sampling settings for rollouts (the fields of `Sampling`).
        filtered_log_probs: If False, log-probabilities are those of the unfiltered distribution, as in RL4LMs without
            a mask. It must be True with a mask, since NLPO's ratio and entropy are those of the masked distribution.
        context_start_token: The first decoder token of an encoder-decoder model. If None, the model's default is used.
        mask_type: NLPO's mask: "learned_top_p" or "learned_top_k" of an older copy of the policy, or "topk" of the
            policy itself. If None, there is no mask.
        top_mask: p or k of the mask. If None, p is 0.9.
        min_tokens_to_keep: Minimum number of tokens that a top-p mask allows. If None, 100 is used.
    """

    needs = frozenset({"prompt"})
    has_value_head: ClassVar[bool] = True

    def __init__(
        self,
        lm: arguments.TrainedModel,
        reference: arguments.ReferenceModel = None,
        value: Literal["separate", "lora", "shared"] = "separate",
        value_base: arguments.ValueBase = None,
        value_lora: Annotated[Mapping[str, Any] | None, OnlyWith("value", ("lora",))] = None,
        value_hidden_sizes: Sequence[int] = (),
        value_bias: bool = False,
        critic: arguments.Critic = True,
        generation: Mapping[str, Any] | None = None,
        filtered_log_probs: bool = True,
        context_start_token: int | None = None,
        mask_type: arguments.MaskKind = None,
        top_mask: arguments.TopMask = None,
        min_tokens_to_keep: arguments.MinTokens = None,
    ) -> None:
        super().__init__()
        if context_start_token is not None and not lm.is_encoder_decoder:
            raise ConfigError(f"context_start_token={context_start_token} needs an encoder-decoder model: remove it")
        if mask_type is not None and not filtered_log_probs:
            raise ConfigError(
                f"filtered_log_probs=false computes ratios without the mask that mask_type={mask_type} needs: remove "
                "one of them"
            )
        self.lm = lm
        self.sampling = Sampling.of(generation or {}, lambda name, known: unknown("generation setting", name, known))
        self.filtered_log_probs = filtered_log_probs
        self.context_start_token = context_start_token
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_lm = None
        if critic and value != "shared":
            base = value_base or reference
            self.value_lm = _without_output(lm.copy() if value == "separate" else _adapted(lm, base, value_lora or {}))
        self.value_head: nn.Module | None = (
            ValueHead(lm.hidden_size, tuple(value_hidden_sizes), bias=value_bias).to(lm.device) if critic else None
        )
        mask = self.make_mask(mask_type, top_mask, min_tokens_to_keep)
        self._texts_at_once: int | None = None  # None for all
        self._decoder = Decoder(lm, context_start_token, mask, self.mask_lm)

    @property
    def language_models(self) -> list[LanguageModel]:
        """The language models of the policy, its value function, NLPO's mask, and the reference."""
        reference = None if self.reference is None else self.reference.language_model
        return [lm for lm in (self.lm, self.value_lm, self.mask_lm, reference) if lm is not None]

    @torch.no_grad()
    def write(self, prompts: Sequence[TokenPrompt], uniforms: Tensor, max_new_tokens: int | None = None) -> Writing:
        """Generate a text for each prompt, with one pass for values and one for the reference's log-probabilities.
        If the device runs out of memory, the number of texts generated at a time is halved for all later calls.

        Args:
            prompts: The prompts; duplicates are read once. An empty or overlong prompt raises `GroundlingError`.
            uniforms: Random numbers in [0, 1), float64 ``(num_prompts, max_new_tokens)``, one for each token. They are
                sampled in advance, so that texts do not depend on how prompts are split over processes.
            max_new_tokens: Maximum number of tokens in a text. If None, that of ``generation`` is used.
        """
        num_tokens = max_new_tokens or self.sampling.max_new_tokens or uniforms.shape[1]
        while True:
            size = min(self._texts_at_once or len(prompts), len(prompts))
            parts = [slice(first, first + size) for first in range(0, len(prompts), size)]
            try:
                return Writing.concatenate([self._write(prompts[p], uniforms[p], num_tokens) for p in parts])
            except torch.OutOfMemoryError as error:
                problem = str(error).split(". ")[0]
            # This is outside the except block, so the exception no longer references the failed pass's tensors.
            if size == 1:
                raise RunError(
                    f"{problem}: there is not enough memory to generate one text. Lower world.num_tokens or "
                    "world.max_prompt_length, or use a smaller model"
                )
            self._texts_at_once = size // 2
            message = f"{problem}: continuing with {self._texts_at_once} texts at a time, which only affects speed"
            warn_caller(message)
            torch.cuda.empty_cache()

    def _write(self, prompts: Sequence[TokenPrompt], uniforms: Tensor, num_tokens: int) -> Writing:
        decoded = self._decoder([p.ids for p in prompts], self.sampling, uniforms, num_tokens)
        sets: Sequence[Tensor | None] = decoded.sets or [None] * len(prompts)
        lengths = decoded.lengths.tolist()
        observations = [Written(p.ids, n, s) for p, n, s in zip(prompts, lengths, sets, strict=True)]
        mask = torch.arange(num_tokens) < decoded.lengths[:, None]  # (num_texts, num_tokens)
        actions, log_probs, raw = (
            F.pad(tensor, (0, num_tokens - tensor.shape[1]))
            for tensor in (decoded.tokens, decoded.log_probs, decoded.raw_log_probs)
        )
        sequences = self._sequences(observations, actions)
        values = torch.zeros(mask.shape)
        if self.value_head is not None:
            values.masked_scatter_(mask, self._values(sequences).cpu())
        reference = self._reference_log_probs(sequences, actions[mask])
        kl = None if reference is None else raw.masked_scatter(mask, raw[mask] - reference.cpu())
        ends = torch.arange(num_tokens) == decoded.lengths[:, None] - 1
        return Writing(
            observations,
            actions.T.contiguous(),
            (log_probs if self.filtered_log_probs else raw).T.contiguous(),
            None if self.value_head is None else values.T.contiguous(),
            ends.T.contiguous(),
            mask.T.contiguous(),
            None if kl is None else kl.T.contiguous(),
            raw.T.contiguous(),
        )

    def _values(self, sequences: Sequences, states: Tensor | None = None) -> Tensor:
        """Return values, float32 ``(num_tokens,)``; ``states`` are the policy's states, if already computed."""
        if self.value_head is None:
            return torch.zeros(sum(sequences.counts), device=self.lm.device)
        if self.value_lm is not None or states is None:
            lm = self.value_lm or self.lm
            with lm.autocast():
                states = read_states(lm, sequences)
        # In float32, because bfloat16 has only 8 bits of precision. If models are spread over several devices, the
        # value model may start on a different device than the policy.
        return self.value_head(states.to(self.lm.device, torch.float32))

    @torch.no_grad()
    def reference_log_probs(self, texts: Sequence[Written], actions: Tensor) -> Tensor:
        """Return the reference's log-probabilities of written texts on the CPU; for the arguments, see `evaluate`."""
        mask = torch.arange(actions.shape[1]) < torch.tensor([[text.length] for text in texts])
        parts = []
        for first in range(0, len(texts), _TEXTS):
            rows = slice(first, first + _TEXTS)
            sequences = self._sequences(texts[rows], actions[rows])
            log_probs = self._reference_log_probs(sequences, actions[rows][mask[rows]])
            if log_probs is None:
                raise ConfigError("the policy has no reference model: pass reference=…")
            parts.append(log_probs.cpu())
        return scatter(torch.cat(parts), mask)

    def _reference_log_probs(self, sequences: Sequences, chosen: Tensor) -> Tensor | None:
        """Return the log-probabilities of the tokens ``chosen`` ``(num_tokens,)``, or None without a reference."""
        if self.reference is None:
            return None
        with self.reference.model() as lm, lm.autocast():
            states = read_states(lm, sequences)
            parts = zip(states.split(_ROWS), chosen.to(states.device).split(_ROWS), strict=True)
            return torch.cat([_log_probs_of(lm.backbone.logits(rows), tokens) for rows, tokens in parts])

    def _sequences(self, texts: Sequence[Written], actions: Tensor) -> Sequences:
        """Return the sequences that predict the texts' tokens, passed as ``actions`` ``(num_texts, num_tokens)``."""
        start = [self._decoder.start_token] if self.lm.is_encoder_decoder else []
        written = [[*start, *ids[: text.length].tolist()[:-1]] for ids, text in zip(actions, texts, strict=True)]
        return Sequences([text.prompt for text in texts], written, [text.length for text in texts])

    def evaluate(self, observations: Sequence[Written], actions: Tensor) -> Evaluated:
        """Compute log-probabilities, entropies and values of generated texts.

        Args:
            observations: The `Written` record of each text.
            actions: int64 ``(num_texts, num_tokens)``. After a text's last token, they are ignored and results are 0.
        """
        mask = torch.arange(actions.shape[1]) < torch.tensor([[text.length] for text in observations])
        mask, sequences = mask.to(actions.device), self._sequences(observations, actions)
        with self.lm.autocast():
            states = read_states(self.lm, sequences)
            logits = self.lm.backbone.logits(states).float()  # (tokens in all texts, vocabulary)
        chosen = actions[mask].to(logits.device)
        evaluation = Evaluated.of(self._restricted(logits, observations), chosen, self._values(sequences, states))
        return Evaluated(
            scatter(evaluation.log_probs, mask),
            scatter(evaluation.entropies, mask),
            scatter(evaluation.values, mask),
            lambda: scatter(evaluation.log_distributions(), mask),
            lambda: scatter(_log_probs_of(logits, chosen), mask),
        )

    def _restricted(self, logits: Tensor, texts: Sequence[Written]) -> Tensor:
        """Return log-probabilities ``(num_tokens, vocabulary)`` over the tokens allowed at each position."""
        if not self.filtered_log_probs:
            return logits.log_softmax(-1)
        logits = logits / self.sampling.temperature if self.sampling.temperature != 1 else logits
        sets = [text.sets for text in texts if text.sets is not None]
        if sets:
            left_out = ~allowed_tokens(sets, logits.shape[1], logits.device)
        else:  # only end tokens may have been banned
            left_out = torch.zeros_like(logits, dtype=torch.bool)
            given = [1 if self.lm.is_encoder_decoder else len(text.prompt) for text in texts]
            early = torch.cat(
                [torch.arange(t.length) < self.sampling.first_end(n) for t, n in zip(texts, given, strict=True)]
            )
            if early.any() and self._decoder.ends:
                left_out[:, self._decoder.ends] = early[:, None].to(logits.device)
        return logits.masked_fill(left_out, -torch.inf).log_softmax(-1)

    def act(self, *args: Any, **options: Any) -> Action:
        """Raise `ConfigError`: use `write` instead."""
        raise ConfigError("policy token generates whole texts: call write(prompts, uniforms) instead of act")

    def values(self, observations: Sequence[Any], memory: Tensor | None = None) -> Tensor:
        """Raise `ConfigError`: `write` and `evaluate` return the values of texts."""
        raise ConfigError("policy token computes values only for whole texts: use write(prompts, uniforms).values")

    def work(self, observations: Sequence[Written]) -> Sequence[Work]:
        return [
            Work(len(text.prompt) + text.length, text.prompt if len(text.prompt) >= WORTH_SHARING else index)
            for index, text in enumerate(observations)
        ]

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        """Return the trained weights of the value function and the mask; the rest are the language model's."""
        files = {}
        if self.value_head is not None:
            parts = {"head": self.value_head, "trunk": self.value_lm}
            files["value.safetensors"] = {
                f"{part}.{name}": parameter.detach()
                for part, module in parts.items()
                if module is not None
                for name, parameter in module.named_parameters()
                if parameter.requires_grad
            }
        return files | self.mask_files()


def _log_probs_of(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the log-probabilities, float32 ``(rows,)``, of the tokens ``chosen`` ``(rows,)`` under the logits."""
    return logits.float().log_softmax(-1).gather(1, chosen[:, None].to(logits.device))[:, 0]


def _adapted(lm: LanguageModel, base: LanguageModel | None, lora: Mapping[str, Any]) -> LanguageModel:
    """Create the value model: a copy that shares all frozen weights, with a separate LoRA adapter."""
    # A second adapter in the same model would have to be switched between passes, and a trace, or recomputation in the
    # backward pass, would use the wrong one.
    if lm.has_adapter:
        return lm.with_new_adapter(lora) if lora else lm.copy()
    if base is None:
        raise ConfigError(
            "policy.args.value=lora needs frozen weights for its adapter, but all are trained, and there is neither "
            "a value_base nor a reference: set model.lora={r: 16}, or value=separate or shared"
        )
    return base.requires_grad_(False).with_new_adapter(lora)


def _without_output(model: LanguageModel) -> LanguageModel:
    """Freeze the output layer, which values do not use, unless it is tied to the input embeddings."""
    head, embeddings = model.model.get_output_embeddings(), model.model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        head.requires_grad_(False)
    return model
