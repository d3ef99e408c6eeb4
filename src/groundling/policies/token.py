"""A language model as writer: its actions are tokens, its episodes texts (RL4LMs, arXiv 2210.01241)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import ConfigError, RunError, unknown
from groundling.lm import LanguageModel, ValueHead
from groundling.lm.write.decoding import Decoder
from groundling.lm.write.sampling import Sampling, allowed_tokens, filtered
from groundling.policies.nlpo_mask import MaskType, make_mask
from groundling.policies.policy import (
    Action,
    Critic,
    Evaluation,
    Outputs,
    Policy,
    ReferenceModel,
    TrainedModel,
    ValueBase,
    Work,
    policies,
)
from groundling.policies.prompt_policy import Reference, Value, make_value_model
from groundling.policies.text_states import (
    Sequences,
    TokenPrompt,
    Writing,
    Written,
    read_states,
    scatter,
    shares_prompt,
)

_ROWS = 1024  # Tokens whose logits the reference computes at once: half a gigabyte with a vocabulary of 128,000


@policies.register("token")
class TokenPolicy(Policy):
    """π(token | prompt, text so far): the distribution that the language model is sampled from.

    Log-probabilities are those of the distribution *sampled from*: after temperature, top-k, top-p, the ban of early
    ends, and NLPO's mask. PPO's ratio is right only if its denominator drew the token. With the model's unfiltered
    log-probabilities, as in RL4LMs, ratios also start at 1, but the gradient belongs to a policy that never acted.
    Filters choose a set of tokens by the model *at that time*. The set is kept with each token (`SetKeeper`), and the
    present policy is restricted to it: outside a set of its own, the old token would have no ratio. Keeping NLPO's
    sets also saves the mask model's pass in every epoch, and holds when the mask model is refreshed.

    Args:
        lm: The language model; its weights are the policy's.
        reference: The frozen language model of the KL; ``lm`` itself stands for its weights with the LoRA adapters
            off, which takes no memory. None: no KL.
        value: Where values come from: "separate", a trained copy of ``lm``, as in RL4LMs; "lora", a LoRA adapter of
            its own, which takes only its weights, gradients and moments; or "shared", the policy's hidden states. The
            adapter stands on the frozen weights of the policy's adapter; if the policy is trained as a whole, on those
            of ``value_base``.
        value_base: For "lora" if the policy is trained as a whole: the language model whose frozen weights are under
            the adapter; in a run, the policy as training began. None: the reference.
        value_lora: For "lora", keyword arguments of `peft.LoraConfig`. Empty: an adapter like the policy's, with its
            weights; peft's defaults if the policy is trained as a whole.
        value_hidden_sizes: Widths of the value head's hidden layers; none in RL4LMs.
        value_bias: Give the linear value head a bias; not in RL4LMs.
        critic: False leaves the value function out, for algorithms that need none: all values are 0.
        generation: How rollouts are sampled: the fields of `Sampling`.
        filtered_log_probs: False takes log-probabilities of the unfiltered distribution, as RL4LMs does without a
            mask; impossible with a mask, under which NLPO's ratio and entropy are taken.
        context_start_token: The first token of an encoder-decoder's decoder; None: the model's own.
        mask_type: NLPO's mask: "learned_top_p" or "learned_top_k" of a late copy of the policy, or "topk" of the
            policy itself; None: no mask.
        top_mask: p or k of the mask; None: a p of 0.9.
        min_tokens_to_keep: Least tokens that a top-p mask allows; None: 100.
    """

    needs = frozenset({"prompt"})
    has_value_head: ClassVar[bool] = True

    def __init__(
        self,
        lm: TrainedModel,
        reference: ReferenceModel = None,
        value: Value = "separate",
        value_base: ValueBase = None,
        value_lora: Mapping[str, Any] | None = None,
        value_hidden_sizes: Sequence[int] = (),
        value_bias: bool = False,
        critic: Critic = True,
        generation: Mapping[str, Any] | None = None,
        filtered_log_probs: bool = True,
        context_start_token: int | None = None,
        mask_type: MaskType | None = None,
        top_mask: float | None = None,
        min_tokens_to_keep: int | None = None,
    ) -> None:
        super().__init__()
        if context_start_token is not None and not lm.is_encoder_decoder:
            raise ConfigError(
                f"context_start_token={context_start_token} is for encoder-decoder models, this one is causal: "
                "leave it out"
            )
        if mask_type is not None and not filtered_log_probs:
            raise ConfigError(
                "policy.args.filtered_log_probs=false computes ratios without any filter, and with "
                f"mask_type={mask_type} they must be computed under the mask: leave filtered_log_probs or mask_type "
                "out"
            )
        self.lm = lm
        self.sampling = Sampling.of(generation or {}, lambda name, known: unknown("generation setting", name, known))
        self.filtered_log_probs = filtered_log_probs
        self.context_start_token = context_start_token
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_lm = make_value_model(value, lm, value_base or reference, value_lora or {}) if critic else None
        self.value_head: nn.Module | None = (
            ValueHead(lm.hidden_size, tuple(value_hidden_sizes), bias=value_bias).to(lm.device) if critic else None
        )
        mask = make_mask(lm, mask_type, top_mask, min_tokens_to_keep)
        learned = mask_type in ("learned_top_p", "learned_top_k")
        self.mask_lm = lm.copy().requires_grad_(False) if learned else None
        self._texts_at_once: int | None = None  # None: all
        self._decoder = Decoder(lm, context_start_token, mask, self.mask_lm)

    @property
    def language_models(self) -> list[LanguageModel]:
        """The models of the policy, of its values, of NLPO's mask, and the reference."""
        reference = None if self.reference is None else self.reference.language_model
        return [lm for lm in (self.lm, self.value_lm, self.mask_lm, reference) if lm is not None]

    @torch.no_grad()
    def write(self, prompts: Sequence[TokenPrompt], uniforms: Tensor, max_new_tokens: int | None = None) -> Writing:
        """Sample a text for each prompt, with one pass for values and one for the reference's log-probabilities.

        If the device runs out of memory, half as many texts are written at once from then on.

        Args:
            prompts: The prompts; equal ones are read once.
            uniforms: float64 ``(num_prompts, max_new_tokens)`` in [0, 1): one for each token, drawn beforehand, so
                that texts do not depend on how prompts are split over processes.
            max_new_tokens: Most tokens of a text; None: that of ``generation``.

        Raises:
            GroundlingError: a prompt is empty, or too long for the model.
            RunError: the memory does not suffice for one text.
        """
        num_tokens = max_new_tokens or self.sampling.max_new_tokens or uniforms.shape[1]
        while True:
            size = min(self._texts_at_once or len(prompts), len(prompts))
            parts = [slice(first, first + size) for first in range(0, len(prompts), size)]
            try:
                return Writing.concatenate([self._write(prompts[p], uniforms[p], num_tokens) for p in parts])
            except torch.OutOfMemoryError as error:
                problem = str(error).split(". ")[0]
            # Outside the except block, where the exception no longer holds the failed pass's tensors.
            self._halve(size, problem)

    def _halve(self, size: int, problem: str) -> None:
        if size == 1:
            raise RunError(
                f"{problem}: there is not enough memory to write one text: lower world.num_tokens or "
                "world.max_prompt_length, or take a smaller model"
            )
        self._texts_at_once = size // 2
        warnings.warn(
            f"{problem}: continuing with {self._texts_at_once} texts written at once, which changes nothing but speed",
            stacklevel=3,
        )
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
        sequences = self._text_sequences(observations, actions)
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
        """Return float32 ``(num_tokens,)``; ``states`` are the policy's own, if they have been computed."""
        if self.value_head is None:
            return torch.zeros(sum(sequences.counts), device=self.lm.device)
        if self.value_lm is not None or states is None:
            lm = self.value_lm or self.lm
            with lm.autocast():
                states = read_states(lm, sequences)
        # In float32, because bfloat16 has only 8 bits of precision. Spread over several devices, the values' model may
        # begin on another one than the policy's.
        return self.value_head(states.to(self.lm.device, torch.float32))

    def _reference_log_probs(self, sequences: Sequences, chosen: Tensor) -> Tensor | None:
        """Return the log-probabilities of the tokens ``chosen`` ``(num_tokens,)``; None without a reference."""
        if self.reference is None:
            return None
        with self.reference.model() as lm, lm.autocast():
            states = read_states(lm, sequences)
            parts = zip(states.split(_ROWS), chosen.to(states.device).split(_ROWS), strict=True)
            return torch.cat([_log_probs_of(lm.backbone.logits(rows), tokens) for rows, tokens in parts])

    def _text_sequences(self, texts: Sequence[Written], actions: Tensor) -> Sequences:
        """Return the sequences that predict the texts' tokens, ``actions`` ``(num_texts, num_tokens)``."""
        tokens = [ids[: text.length].tolist() for ids, text in zip(actions, texts, strict=True)]
        return self._sequences([t.prompt for t in texts], [ids[:-1] for ids in tokens], [t.length for t in texts])

    def _sequences(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> Sequences:
        if self.lm.is_encoder_decoder:
            written = [[self._decoder.start_token, *ids] for ids in written]
        return Sequences(prompts, written, counts)

    def evaluate(self, observations: Sequence[Any], actions: Tensor) -> Evaluation:
        """Compute log-probabilities, entropies and values of written texts, or of single tokens.

        Args:
            observations: `Written` of each text; or the token env's, one for each action.
            actions: int64 ``(batch, num_tokens)`` for texts, ``(batch,)`` for single tokens. Beyond a text's last
                token they are ignored, and everything is 0.
        """
        if not isinstance(observations[0], Written):
            return self._evaluate_tokens(observations, actions)
        mask = torch.arange(actions.shape[1]) < torch.tensor([[text.length] for text in observations])
        mask = mask.to(actions.device)
        logits, values = self._forward(self._text_sequences(observations, actions))
        chosen = actions[mask].to(logits.device)
        evaluation = Evaluation.of(self._restricted(logits, observations), chosen, values)
        return Evaluation(
            scatter(evaluation.log_probs, mask),
            scatter(evaluation.entropies, mask),
            scatter(evaluation.values, mask),
            lambda: scatter(evaluation.log_distributions(), mask),
            lambda: scatter(_log_probs_of(logits, chosen), mask),
        )

    def _forward(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return float32 logits ``(num_tokens, vocabulary)`` and values ``(num_tokens,)``."""
        with self.lm.autocast():
            states = read_states(self.lm, sequences)
            logits = self.lm.backbone.logits(states).float()
        return logits, self._values(sequences, states)

    def _restricted(self, logits: Tensor, texts: Sequence[Written]) -> Tensor:
        """Return log-probabilities ``(num_tokens, vocabulary)`` among the tokens that each was drawn from."""
        if not self.filtered_log_probs:
            return logits.log_softmax(-1)
        logits = logits / self.sampling.temperature if self.sampling.temperature != 1 else logits
        sets = [text.sets for text in texts if text.sets is not None]
        if sets:
            left_out = ~allowed_tokens(sets, logits.shape[1], logits.device)
        else:
            early = torch.cat([torch.arange(t.length) < self._first_end(t.prompt) for t in texts])
            left_out = self._banned(early, logits)
        return logits.masked_fill(left_out, -torch.inf).log_softmax(-1)

    def _first_end(self, prompt: Sequence[int]) -> int:
        return self.sampling.first_end(1 if self.lm.is_encoder_decoder else len(prompt))

    def _banned(self, early: Tensor, logits: Tensor) -> Tensor:
        """Return bool ``(rows, vocabulary)``: the end tokens where it is too ``early`` ``(rows,)`` for them."""
        banned = torch.zeros_like(logits, dtype=torch.bool)
        if early.any() and self._decoder.ends:
            banned[:, self._decoder.ends] = early[:, None].to(logits.device)
        return banned

    # The token env: one token a step.

    def act(
        self,
        observations: Sequence[Mapping[str, Any]],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        """Choose the next token at each of the token env's observations, sampled as in `write`."""
        with torch.no_grad():
            raw, sampled, values = self._tokens(observations)
            deterministic = deterministic or not self.sampling.do_sample
            action = Action.choose(sampled, values, deterministic=deterministic, generator=generator)
            if self.filtered_log_probs:
                return action
            return replace(action, log_probs=raw.gather(1, action.actions[:, None])[:, 0])

    def values(self, observations: Sequence[Mapping[str, Any]], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._values(self._token_sequences(observations))

    def outputs(self, observations: Sequence[Mapping[str, Any]]) -> Outputs:
        with torch.no_grad():
            raw, sampled, values = self._tokens(observations)
            return Outputs(sampled if self.filtered_log_probs else raw, values)

    def _evaluate_tokens(self, observations: Sequence[Mapping[str, Any]], actions: Tensor) -> Evaluation:
        chooses = self.sampling.chooses_a_set or (self._decoder.mask is not None and self.mask_lm is None)
        if self.filtered_log_probs and chooses:
            raise ConfigError(
                "trained token by token, the sets of tokens that top_k, top_p or mask_type=topk chose are not "
                "kept, and the present policy would choose others: train on whole texts, or without a mask set "
                "filtered_log_probs=false"
            )
        raw, sampled, values = self._tokens(observations)
        evaluation = Evaluation.of(sampled if self.filtered_log_probs else raw, actions, values)
        return replace(evaluation, raw_log_probs=lambda: raw.gather(1, actions[:, None])[:, 0])

    def _tokens(self, observations: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next token's log-probabilities, unfiltered and filtered ``(batch, vocabulary)``, and values."""
        sequences = self._token_sequences(observations)
        logits, values = self._forward(sequences)
        early = torch.tensor(
            [
                len(written) - int(self.lm.is_encoder_decoder) < self._first_end(prompt)
                for prompt, written in zip(sequences.prompts, sequences.written, strict=True)
            ]
        )
        banned, allowed = self._banned(early, logits), None
        if self._decoder.mask is not None:
            scores = logits.detach()
            if self.mask_lm is not None:
                with torch.no_grad(), self.mask_lm.autocast():
                    scores = self.mask_lm.backbone.logits(read_states(self.mask_lm, sequences)).float()
            allowed = self._decoder.mask(scores.masked_fill(banned, -torch.inf))
        return logits.log_softmax(-1), filtered(logits, self.sampling, banned, allowed), values

    def _token_sequences(self, observations: Sequence[Mapping[str, Any]]) -> Sequences:
        """Return the sequences that predict the next token at the token env's observations."""
        prompts, contexts = (
            [
                [int(t) for t, kept in zip(o[f"{part}_ids"], o[f"{part}_mask"], strict=True) if kept]
                for o in observations
            ]
            for part in ("prompt", "context")
        )
        if self.context_start_token is not None:
            contexts = [context[1:] for context in contexts]  # shown by the env, and added by `_sequences`
        return self._sequences(prompts, contexts, [1] * len(prompts))

    def work(self, observations: Sequence[Any]) -> Sequence[Work]:
        return [
            Work(len(o.prompt) + o.length, o.prompt if shares_prompt(o.prompt) else index)
            if isinstance(o, Written)
            else Work(int(o["prompt_mask"].sum() + o["context_mask"].sum()), index)
            for index, o in enumerate(observations)
        ]

    @property
    def refresh_mask(self) -> Callable[[], None] | None:
        """A function that copies the present policy into the mask model; None without a mask."""
        return None if self._decoder.mask is None else self._refresh_mask

    @torch.no_grad()
    def _refresh_mask(self) -> None:
        if self.mask_lm is not None:
            for late, present in zip(self.mask_lm.parameters(), self.lm.parameters(), strict=True):
                late.copy_(present)

    def save_pretrained(self, folder: Path) -> None:
        """Write the language model into ``folder``, with ``value.safetensors`` and ``mask.safetensors``."""
        self.lm.save_pretrained(folder)
        super().save_pretrained(folder)

    def weight_files(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights of values and mask that training changes; the others are the language model's."""
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
        if self.mask_lm is not None:
            trained = {name for name, parameter in self.lm.named_parameters() if parameter.requires_grad}
            files["mask.safetensors"] = {
                name: parameter.detach() for name, parameter in self.mask_lm.named_parameters() if name in trained
            }
        return files


def _log_probs_of(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return float32 ``(rows,)``: log-probabilities of the tokens ``chosen`` ``(rows,)`` under logits."""
    return logits.float().log_softmax(-1).gather(1, chosen[:, None].to(logits.device))[:, 0]
