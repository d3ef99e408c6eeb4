"""Sample a batch of texts with the log-probability of every token, for text-generation rollouts.

Each token is sampled from one uniform number by inverting the cumulative distribution, so a text depends only on its
own random numbers, not on its batch. For beam search, see `LanguageModel.generate`.
"""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from groundling.errors import ConfigError, RunError
from groundling.lm.backbone import Backbone
from groundling.lm.language_model import LanguageModel, states_after
from groundling.lm.read.batching import padded
from groundling.lm.write.generation import only_settings
from groundling.lm.write.sampling import Mask, Sampling, SetKeeper, draw, filtered
from groundling.lm.write.steps import Stepper

# Number of tokens after which the host synchronises with an accelerator, to find out which texts have ended and which
# tokens were allowed. Tokens generated after a text's end are dropped. On CPUs, the check is made after every token.
_SYNC_EVERY = 16


@dataclass(frozen=True)
class Decoded:
    """Generated texts on the CPU, without gradients; padded with 0 after a text's last token."""

    tokens: Tensor  # int64 (num_texts, num_steps), including the end token if it was reached
    lengths: Tensor  # int64 (num_texts,)
    log_probs: Tensor  # float32 (num_texts, num_steps), of the distribution that each token was sampled from
    raw_log_probs: Tensor  # the same for the model's own distribution, before temperature, filters and masks
    sets: list[Tensor] | None  # tokens allowed by filters and masks (`SetKeeper.sets`); None without filters and masks


class Decoder:
    """Generates texts with a language model, optionally with NLPO's mask from the logits of ``mask_lm`` or ``lm``."""

    def __init__(
        self,
        lm: LanguageModel,
        start_token: int | None = None,
        mask: Mask | None = None,
        mask_lm: LanguageModel | None = None,
    ) -> None:
        self.lm = lm
        self.start_token = lm.start_token if start_token is None else start_token
        self.mask = mask
        self.mask_lm = mask_lm
        self.ends = list(lm.end_tokens.ids)
        # Backbones separate from `lm.backbone`, because a stepper traces the model instead of compiling it.
        self._stepper = Stepper(Backbone(lm.model), self.start_token)
        self._mask_stepper = Stepper(Backbone(mask_lm.model), self.start_token) if mask_lm else None

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, uniforms: Tensor, max_new_tokens: int | None = None
    ) -> Decoded:
        """Continue each prompt; identical prompts are read once.

        ``uniforms``, float64 (num_prompts, num_steps) in [0, 1), contains one number per token; texts have at most
        ``num_steps`` tokens. ``max_new_tokens`` overrides the value in ``sampling``.
        """
        new_tokens = min(max_new_tokens or sampling.max_new_tokens or uniforms.shape[1], uniforms.shape[1])
        self._check(prompts, new_tokens)
        given = [1 if self.lm.is_encoder_decoder else len(prompt) for prompt in prompts]
        ends = self.ends if sampling.terminate_on_eos else ()
        choice = _Choice(sampling, self.mask, given, self.ends, ends, uniforms[:, :new_tokens], self.lm.device)
        steppers = [self._stepper, *([self._mask_stepper] if self._mask_stepper else [])]
        with self.lm.caching(), self.mask_lm.caching() if self.mask_lm else nullcontext():
            if all(self._can_step(stepper, given, new_tokens) for stepper in steppers):
                with self.lm.autocast():
                    self._write(prompts, choice)
            else:
                self._generate(prompts, choice)
        return choice.decoded()

    def _check(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        room, encodes = self.lm.max_positions, self.lm.is_encoder_decoder
        for index, prompt in enumerate(prompts):
            if not prompt:
                raise ConfigError(f"prompt {index} is empty: pass at least one token")
            # An encoder-decoder's decoder does not read the prompt; the last generated token is never read.
            needed = max(len(prompt), new_tokens) if encodes else len(prompt) + new_tokens - 1
            if room is not None and needed > room:
                raise RunError(
                    f"prompt {index} has {len(prompt)} tokens and the text up to {new_tokens}, but this model has "
                    f"room for {room}: reduce max_prompt_length or max_new_tokens"
                )

    def _can_step(self, stepper: Stepper, given: Sequence[int], new_tokens: int) -> bool:
        """Return True if token-by-token decoding is exact for texts of these lengths; warn once if not."""
        window, longest = stepper.backbone.layers.window, max(given) + new_tokens
        if window is not None and longest > window:
            why = f"sliding window of {window} tokens"
        elif not stepper.exact:
            why = "token-by-token decoding does not exactly reproduce the model's full forward pass"
        else:
            return True
        name = type(stepper.backbone.model).__name__
        stepper.backbone.warn_once(f"{name} falls back to Transformers' loop for generation, which is slower ({why})")
        return False

    def _write(self, prompts: Sequence[Sequence[int]], choice: "_Choice") -> None:
        texts = self._stepper.begin(prompts, choice.num_steps)
        mask_texts = self._mask_stepper.begin(prompts, choice.num_steps) if self._mask_stepper else None
        rows = torch.arange(len(prompts), device=self.lm.device)
        for step in range(choice.num_steps):
            tokens = choice(texts.logits, rows, step, None if mask_texts is None else mask_texts.logits)
            if step == choice.num_steps - 1:
                return
            if choice.ends and choice.syncs_after(step):
                alive = choice.alive[rows]
                count = int(alive.sum())
                if count == 0:
                    return
                if count <= len(rows) // 2:  # copying the key-value cache costs about as much as a step
                    rows, tokens = rows[alive], tokens[alive]
                    for one in (texts, mask_texts):
                        if one is not None:
                            one.keep(alive.nonzero()[:, 0])
            self._stepper.add(texts, tokens)
            if self._mask_stepper and mask_texts is not None:
                self._mask_stepper.add(mask_texts, tokens)

    def _generate(self, prompts: Sequence[Sequence[int]], choice: "_Choice") -> None:
        """Generate with Transformers' loop, for recurrent models and others that `Stepper` does not support."""
        # Autocast is off, since this loop would round logits to bfloat16.
        lm, left = self.lm, not self.lm.is_encoder_decoder
        model: Any = lm.model
        for indices in lm.generator.batches(list(map(len, prompts)), choice.num_steps - 1):
            lines = [prompts[index] for index in indices]
            tokens, mask = padded(lines, lm.device, lm.filler, left)
            rows = torch.tensor(indices, device=lm.device)
            processor = _Chooser(choice, rows, tokens.shape[1] if left else 1, self.mask_lm, lines)
            settings = GenerationConfig(
                max_new_tokens=choice.num_steps,
                do_sample=False,
                pad_token_id=lm.filler,
                eos_token_id=list(choice.ends) or None,
                decoder_start_token_id=self.start_token,
            )
            with only_settings(model, settings):
                model.generate(
                    input_ids=tokens, attention_mask=mask, logits_processor=LogitsProcessorList([processor])
                )


class _Choice:
    """Chooses tokens step by step, and joins the steps at the end."""

    def __init__(
        self,
        sampling: Sampling,
        mask: Mask | None,
        given: Sequence[int],
        end_tokens: Collection[int],
        ends: Collection[int],
        uniforms: Tensor,
        device: torch.device,
    ) -> None:
        self.sampling = sampling
        self.mask = mask
        self.num_steps = uniforms.shape[1]
        self.ends = ends
        first_ends = [sampling.first_end(count) for count in given]
        self.first_end, self.all_may_end = torch.tensor(first_ends, device=device), max(first_ends, default=0)
        self.end_tokens = torch.tensor(sorted(end_tokens), dtype=torch.long, device=device)
        self.end_ids = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self.num_texts = len(given)
        self.alive = torch.ones(len(given), dtype=torch.bool, device=device)
        self.uniforms = uniforms.to(device)
        # Each step's index, rows, tokens, log-probabilities and raw log-probabilities, (rows,) on the model's device
        self.chosen: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []
        self.sets = SetKeeper(len(given))
        self._sync_every = 1 if device.type == "cpu" else _SYNC_EVERY

    def syncs_after(self, step: int) -> bool:
        """Return True if the host synchronises with the device after this step."""
        return (step + 1) % self._sync_every == 0

    def __call__(self, logits: Tensor, rows: Tensor, step: int, mask_logits: Tensor | None) -> Tensor:
        """Choose the next token of each text in ``rows`` from logits (len(rows), vocabulary)."""
        logits = logits.to(rows.device, torch.float32)
        raw = logits.log_softmax(-1)
        log_probs = self._log_probs(logits, raw, rows, step, mask_logits)
        if self.sampling.do_sample:
            tokens = draw(log_probs, self.uniforms[rows, step])
        else:
            tokens = log_probs.argmax(-1)
        places = tokens[:, None]
        raw_chosen = raw.gather(1, places)[:, 0]
        chosen = raw_chosen if log_probs is raw else log_probs.gather(1, places)[:, 0]
        self.chosen.append((step, rows, tokens, chosen, raw_chosen))
        if self.mask is not None or self.sampling.chooses_a_set:
            self.sets.add(step, rows, ~log_probs.isinf() & self.alive[rows, None])
            if self.syncs_after(step):
                self.sets.pack()
        if len(self.end_ids):
            self.alive[rows] &= ~torch.isin(tokens, self.end_ids)
        return tokens

    def _log_probs(self, logits: Tensor, raw: Tensor, rows: Tensor, step: int, mask_logits: Tensor | None) -> Tensor:
        """Return the log-probabilities that tokens are sampled from."""
        banned = allowed = None
        if step < self.all_may_end and len(self.end_tokens):
            banned = torch.zeros_like(logits, dtype=torch.bool)
            banned[:, self.end_tokens] = (self.first_end[rows] > step)[:, None]
        if self.mask is not None:
            scores = logits if mask_logits is None else mask_logits.to(logits.device, torch.float32)
            # If the mask allowed only a banned end token, no token would be left.
            allowed = self.mask(scores if banned is None else scores.masked_fill(banned, -torch.inf))
        changed = self.sampling.chooses_a_set or self.sampling.temperature != 1
        if banned is None and allowed is None and not changed:
            return raw
        return filtered(logits, self.sampling, banned, allowed)

    def decoded(self) -> Decoded:
        """Join the steps, and truncate each text after its end token."""
        shape = (self.num_texts, max((step + 1 for step, *_ in self.chosen), default=1))
        tokens = self.end_ids.new_zeros(shape)
        log_probs, raw_log_probs = (torch.zeros(shape, device=tokens.device) for _ in range(2))
        for step, rows, *columns in self.chosen:
            for whole, column in zip((tokens, log_probs, raw_log_probs), columns, strict=True):
                whole[rows, step] = column
        ended = torch.isin(tokens, self.end_ids)
        mask = ended.cumsum(1) - ended.long() == 0  # no end token before this one
        for whole in (tokens, log_probs, raw_log_probs):
            whole.masked_fill_(~mask, 0)
        lengths = mask.sum(1).cpu() if self.chosen else torch.zeros(self.num_texts, dtype=torch.long)
        sets = self.sets.sets(lengths)
        return Decoded(tokens.cpu(), lengths, log_probs.cpu(), raw_log_probs.cpu(), sets)


@dataclass
class _Chooser(LogitsProcessor):
    """Makes Transformers' greedy loop select the tokens chosen by a `_Choice`."""

    choice: _Choice
    rows: Tensor
    given: int
    mask_lm: LanguageModel | None
    prompts: Sequence[Sequence[int]]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        mask_logits = None
        if self.mask_lm is not None:  # reads all texts again at each step, which is slow but exact for every model
            states = states_after(self.mask_lm, self.prompts, input_ids[:, self.given :].tolist())
            mask_logits = self.mask_lm.backbone.logits(states)
        tokens = self.choice(scores, self.rows, input_ids.shape[1] - self.given, mask_logits)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)
