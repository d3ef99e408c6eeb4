"""A language model that writes: its actions are tokens, its episodes texts (RL4LMs, arXiv 2210.01241)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import ConfigError, RunError
from groundling.lm import LanguageModel, ValueHead
from groundling.lm.write.decoding import Decoded, Decoder
from groundling.lm.write.sampling import Sampling, filtered
from groundling.lm.write.token_sets import TokenSets, allowed_tokens
from groundling.policies.lines import Lines, read_states, shares_prompt, spread
from groundling.policies.mask import MaskType, make_mask
from groundling.policies.policy import Action, Evaluation, Outputs, Policy, Work, policies
from groundling.policies.reference import Reference
from groundling.policies.texts import TokenPrompt, Writing, Written
from groundling.policies.trunk import Value, make_trunk
from groundling.policies.weights import read_into
from groundling.registry import unknown

_ROWS = 1024
"""Tokens that the reference gives logits of at once: of a vocabulary of 128,000 half a gigabyte."""


@policies.register("token")
class TokenPolicy(Policy):
    """π(token | prompt, text so far) is the language model's, as it is sampled from.

    Log-probabilities are those of the distribution that was *sampled from*: after temperature, top-k, top-p, the ban
    of early ends, and NLPO's mask. PPO's ratio corrects for the policy's change since then, and does so rightly only
    if its denominator is what drew the token; with the model's unfiltered ones, as in RL4LMs, every ratio starts at 1
    all the same, but the gradient belongs to a policy that never acted. Filters choose a set of tokens by what the
    model thought *then*. That set is kept with each token (`TokenSets`), so that the present policy is restricted
    to the same one: with a set of its own the old token might lie outside, and no ratio would exist. Keeping NLPO's
    sets also spares the mask model's forward pass in every epoch, and holds when the mask model is refreshed.

    Args:
        lm: The language model; its weights are the policy's.
        reference: The frozen language model that the KL is taken to; ``lm`` itself stands for its weights with the
            LoRA adapters off, at no memory. None: no KL.
        value: Where values come from: "separate", a copy of ``lm`` with trained weights of its own, as in RL4LMs;
            "lora", a LoRA adapter of its own, which with its gradients and moments is all the memory it takes; or
            "shared", the policy's hidden states. The adapter stands on the frozen weights under the policy's; where
            the policy is trained as a whole, on those of ``value_base``.
        value_base: Of "lora", the language model whose weights, frozen from now on, are under the adapter of the values
            of a policy trained as a whole: as that began, in a run. None takes the reference.
        value_lora: Of "lora", keyword arguments of `peft.LoraConfig`. Empty: an adapter like the policy's, with what
            that has learnt already; peft's defaults where the policy is trained as a whole.
        value_hidden_sizes: Widths of the value head's hidden layers; none in RL4LMs.
        value_bias: Whether the linear value head has a bias; not in RL4LMs.
        critic: False leaves the value function out, for algorithms that learn without: then all values are 0.
        generation: How rollouts are sampled: the fields of `Sampling`.
        filtered_log_probs: False takes log-probabilities of the unfiltered distribution, as RL4LMs does without a mask;
            not to be had with one, which NLPO's ratio and entropy are taken under.
        context_start_token: What an encoder-decoder's decoder reads first; None takes the model's own.
        mask_type: NLPO's mask: "learned_top_p" or "learned_top_k" of a late copy of the policy, or "topk" of the
            policy itself; None for no mask.
        top_mask: p or k of the mask; None: a p of 0.9.
        min_tokens_to_keep: At least so many tokens are allowed by a top-p mask; None: 100.
    """

    needs = frozenset({"prompt"})
    has_value_head: ClassVar[bool] = True

    def __init__(
        self,
        lm: LanguageModel,
        reference: LanguageModel | None = None,
        value: Value = "separate",
        value_base: LanguageModel | None = None,
        value_lora: Mapping[str, Any] | None = None,
        value_hidden_sizes: Sequence[int] = (),
        value_bias: bool = False,
        critic: bool = True,
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
        self.sampling = _sampling(generation or {})
        self.filtered_log_probs = filtered_log_probs
        self.context_start_token = context_start_token
        self.reference = None if reference is None else Reference(reference, lm)
        self.value_lm = make_trunk(value, lm, value_base or reference, value_lora or {}) if critic else None
        self.value_head: nn.Module | None = (
            ValueHead(lm.hidden_size, tuple(value_hidden_sizes), bias=value_bias).to(lm.device)
            if critic
            else None
        )
        mask = make_mask(lm, mask_type, top_mask, min_tokens_to_keep)
        learned = mask_type in ("learned_top_p", "learned_top_k")
        self.mask_lm = lm.copy().requires_grad_(False) if learned else None
        self._texts_at_once: int | None = None  # None: all
        self._decoder = Decoder(lm, context_start_token, mask, self.mask_lm)

    @property
    def language_models(self) -> list[LanguageModel]:
        """Its own, and what stands beside it: those of the values, of NLPO's mask, and the reference."""
        reference = None if self.reference is None else self.reference.language_model
        return [lm for lm in (self.lm, self.value_lm, self.mask_lm, reference) if lm is not None]

    # Writing whole texts

    @torch.no_grad()
    def write(
        self, prompts: Sequence[TokenPrompt], uniforms: Tensor, max_new_tokens: int | None = None
    ) -> Writing:
        """Sample a text to each prompt, with one pass for values and one for the reference's log-probabilities.

        All at once, or where the device's memory does not suffice for that, half as many, for good: texts depend on
        their own numbers alone.

        Args:
            prompts: What to write to; equal ones are read once.
            uniforms: ``(num_prompts, max_new_tokens)`` float64 in [0, 1): one for each token, drawn beforehand, so
                that texts do not depend on how prompts are spread over processes.
            max_new_tokens: Texts end after so many tokens; takes the place of the settings' own.

        Raises:
            GroundlingError: a prompt is empty, or too long for the model.
            RunError: the memory does not suffice for one text.
        """
        num_tokens = max_new_tokens or self.sampling.max_new_tokens or uniforms.shape[1]
        while True:
            size = min(self._texts_at_once or len(prompts), len(prompts))
            parts = [slice(first, first + size) for first in range(0, len(prompts), size)]
            try:
                return Writing.beside([self._write(prompts[p], uniforms[p], num_tokens) for p in parts])
            except torch.OutOfMemoryError as error:
                problem = str(error).split(". ")[0]
            # Only here, past the exception, is what it held of the failed pass free again.
            self._halve(size, problem)

    def _halve(self, size: int, problem: str) -> None:
        if size == 1:
            raise RunError(
                f"{problem}: there is not enough memory to write one text: lower world.num_tokens or "
                "world.max_prompt_length, or take a smaller model"
            )
        self._texts_at_once = size // 2
        warnings.warn(
            f"{problem}: going on with {self._texts_at_once} texts written at once, which changes nothing but speed",
            stacklevel=3,
        )
        torch.cuda.empty_cache()

    def _write(self, prompts: Sequence[TokenPrompt], uniforms: Tensor, num_tokens: int) -> Writing:
        """`write`, of all prompts at once."""
        decoded = self._decoder([p.ids for p in prompts], self.sampling, uniforms, num_tokens)
        observations = self._observations(prompts, decoded)
        mask = torch.arange(num_tokens) < decoded.lengths[:, None]  # (num_texts, num_tokens)
        actions, log_probs, raw = (
            F.pad(tensor, (0, num_tokens - tensor.shape[1]))
            for tensor in (decoded.tokens, decoded.log_probs, decoded.raw_log_probs)
        )
        lines = self._text_lines(observations, actions)
        values = torch.zeros(mask.shape)
        if self.value_head is not None:
            values.masked_scatter_(mask, self._values(lines).cpu())
        reference = self._reference_log_probs(lines, actions[mask])
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

    def _observations(self, prompts: Sequence[TokenPrompt], decoded: Decoded) -> list[Written]:
        sets: Sequence[TokenSets | None] = decoded.sets or [None] * len(prompts)
        lengths = decoded.lengths.tolist()
        return [Written(p.ids, n, s) for p, n, s in zip(prompts, lengths, sets, strict=True)]

    def _values(self, lines: Lines, states: Tensor | None = None) -> Tensor:
        """float32 (number of tokens that count,); ``states`` are the policy's own, where they have been read."""
        if self.value_head is None:
            return torch.zeros(sum(lines.counts), device=self.lm.device)
        if self.value_lm is not None or states is None:
            lm = self.value_lm or self.lm
            with lm.autocast():
                states = read_states(lm, lines)
        # The head stays out of autocast: bfloat16 tells values apart no finer than 1 in 256. Spread over several
        # devices, the values' model may begin on another than the policy's.
        return self.value_head(states.to(self.lm.device, torch.float32))

    def _reference_log_probs(self, lines: Lines, chosen: Tensor) -> Tensor | None:
        """float32 (number of tokens that count,) of the tokens ``chosen``; None without a reference."""
        if self.reference is None:
            return None
        with self.reference.model() as lm, lm.autocast():
            states = read_states(lm, lines)
            parts = zip(states.split(_ROWS), chosen.to(states.device).split(_ROWS), strict=True)
            return torch.cat([_log_probs_of(lm.backbone.logits(rows), tokens) for rows, tokens in parts])

    def _text_lines(self, texts: Sequence[Written], actions: Tensor) -> Lines:
        """What is read to predict the texts' tokens, of which `actions` (num_texts, num_tokens) begins with."""
        tokens = [ids[: text.length].tolist() for ids, text in zip(actions, texts, strict=True)]
        return self._lines([t.prompt for t in texts], [ids[:-1] for ids in tokens], [t.length for t in texts])

    def _lines(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], counts: Sequence[int]
    ) -> Lines:
        if self.lm.is_encoder_decoder:
            written = [[self._decoder.start_token, *ids] for ids in written]
        return Lines(prompts, written, counts)

    # Both kinds of observation

    def evaluate(self, observations: Sequence[Any], actions: Tensor) -> Evaluation:
        """Log-probabilities, entropies and values of written texts, or of single tokens.

        Args:
            observations: `Written` of each text; or the token env's, one for each action.
            actions: ``(batch, num_tokens)`` int64, of texts; ``(batch,)`` of single tokens. What comes after a text's
                last token is not read; there everything is 0.
        """
        if not isinstance(observations[0], Written):
            return self._evaluate_tokens(observations, actions)
        mask = torch.arange(actions.shape[1]) < torch.tensor([[text.length] for text in observations])
        mask = mask.to(actions.device)
        logits, values = self._forward(self._text_lines(observations, actions))
        chosen = actions[mask].to(logits.device)
        evaluation = Evaluation.of(self._restricted(logits, observations), chosen, values)
        return Evaluation(
            spread(evaluation.log_probs, mask),
            spread(evaluation.entropies, mask),
            spread(evaluation.values, mask),
            lambda: spread(evaluation.log_distributions(), mask),
            lambda: spread(_log_probs_of(logits, chosen), mask),
        )

    def _forward(self, lines: Lines) -> tuple[Tensor, Tensor]:
        """float32 logits (number of tokens that count, vocabulary) and values (number of tokens that count,)."""
        with self.lm.autocast():
            states = read_states(self.lm, lines)
            logits = self.lm.backbone.logits(states).float()
        return logits, self._values(lines, states)

    def _restricted(self, logits: Tensor, texts: Sequence[Written]) -> Tensor:
        """Log-probabilities (number of tokens, vocabulary) among what each token was drawn from."""
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
        """Bool (rows, vocabulary): the end tokens where it is too ``early`` (rows,) for them."""
        banned = torch.zeros_like(logits, dtype=torch.bool)
        if early.any() and self._decoder.ends:
            banned[:, self._decoder.ends] = early[:, None].to(logits.device)
        return banned

    # Token by token

    def act(
        self,
        observations: Sequence[Mapping[str, Any]],
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        """Choose the next token at each of the token env's observations, by the settings of `write`."""
        with torch.no_grad():
            raw, sampled, values = self._tokens(observations)
            action = Action.choose(
                sampled,
                values,
                deterministic=deterministic or not self.sampling.do_sample,
                generator=generator,
            )
            if self.filtered_log_probs:
                return action
            return Action(action.actions, raw.gather(1, action.actions[:, None])[:, 0], values)

    def values(self, observations: Sequence[Mapping[str, Any]], memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._values(self._token_lines(observations)[0])

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
        """Of the next token: log-probabilities, unfiltered and filtered (batch, vocabulary), and values (batch,)."""
        lines, first_ends, steps = self._token_lines(observations)
        logits, values = self._forward(lines)
        early = torch.tensor([step < first for step, first in zip(steps, first_ends, strict=True)])
        banned, allowed = self._banned(early, logits), None
        if self._decoder.mask is not None:
            scores = logits.detach() if self.mask_lm is None else self._mask_logits(self.mask_lm, lines)
            allowed = self._decoder.mask(scores.masked_fill(banned, -torch.inf))
        return logits.log_softmax(-1), filtered(logits, self.sampling, banned, allowed), values

    def _mask_logits(self, mask_lm: LanguageModel, lines: Lines) -> Tensor:
        with torch.no_grad(), mask_lm.autocast():
            return mask_lm.backbone.logits(read_states(mask_lm, lines)).float()

    def _token_lines(self, observations: Sequence[Mapping[str, Any]]) -> tuple[Lines, list[int], list[int]]:
        """What the token env's observations tell to read; the first step that may end each text, and the step it is."""
        prompts, contexts = (
            [
                [int(t) for t, kept in zip(o[f"{part}_ids"], o[f"{part}_mask"], strict=True) if kept]
                for o in observations
            ]
            for part in ("prompt", "context")
        )
        if self.context_start_token is not None:
            contexts = [context[1:] for context in contexts]  # which the env shows, and `_lines` adds
        lines = self._lines(prompts, contexts, [1] * len(prompts))
        return lines, [self._first_end(prompt) for prompt in prompts], [len(context) for context in contexts]

    def work(self, observations: Sequence[Any]) -> Sequence[Work]:
        return [
            Work(len(o.prompt) + o.length, o.prompt if shares_prompt(o.prompt) else index)
            if isinstance(o, Written)
            else Work(int(o["prompt_mask"].sum() + o["context_mask"].sum()), index)
            for index, o in enumerate(observations)
        ]

    @property
    def refresh_mask(self) -> Callable[[], None] | None:
        """Makes the mask model a copy of the present policy; None where there is no mask."""
        return None if self._decoder.mask is None else self._refresh_mask

    @torch.no_grad()
    def _refresh_mask(self) -> None:
        if self.mask_lm is not None:
            for late, present in zip(self.mask_lm.parameters(), self.lm.parameters(), strict=True):
                late.copy_(present)

    # Keeping it

    def save_pretrained(self, folder: Path) -> None:
        """The language model at the folder's root; beside it ``value.safetensors`` and ``mask.safetensors``.

        Of the value function's trunk and the mask model, the weights that training changes: others are ``lm``'s.
        """
        self.lm.save_pretrained(folder)
        if self.value_head is not None:
            save_file(self._value_weights(), folder / "value.safetensors")
        if self.mask_lm is not None:
            save_file(self._mask_weights(self.mask_lm), folder / "mask.safetensors")

    def load_weights(self, folder: Path) -> None:
        """Read values and mask; the language model is made from ``folder`` by `LanguageModel.from_pretrained`."""
        if self.value_head is not None:
            read_into(self._value_weights(), folder / "value.safetensors")
        if self.mask_lm is not None:
            read_into(self._mask_weights(self.mask_lm), folder / "mask.safetensors")

    def _value_weights(self) -> dict[str, Tensor]:
        parts = {"head": self.value_head, "trunk": self.value_lm}
        return {
            f"{part}.{name}": parameter.detach()
            for part, module in parts.items()
            if module is not None
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def _mask_weights(self, mask_lm: LanguageModel) -> dict[str, Tensor]:
        trained = {name for name, parameter in self.lm.named_parameters() if parameter.requires_grad}
        return {name: p.detach() for name, p in mask_lm.named_parameters() if name in trained}


def _log_probs_of(logits: Tensor, chosen: Tensor) -> Tensor:
    """Float32 (rows,): of the tokens ``chosen`` (rows,) by each row of logits (rows, vocabulary)."""
    return logits.float().log_softmax(-1).gather(1, chosen[:, None].to(logits.device))[:, 0]


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"generation must be settings, such as {{top_k: 50}}, got {settings!r}")
    known = [field.name for field in fields(Sampling)]
    for name in settings:
        if name not in known:
            raise ConfigError(unknown("generation setting", name, known))
    return Sampling(**settings)
