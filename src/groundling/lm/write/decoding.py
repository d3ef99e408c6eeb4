"""Sampling a batch of texts, with the log-probability of every token: what a writer's rollouts are made of.

One uniform number decides each token, by the inverse of the cumulative distribution, so that a text depends on its own
numbers alone and not on how a batch is spread. Searches over several texts (beams) are `LanguageModel.generate`'s.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from groundling.errors import GroundlingError
from groundling.lm.backbone import Backbone
from groundling.lm.read.packing import padded
from groundling.lm.read.padding import configured
from groundling.lm.write.sampling import Mask, Sampling, draw, filtered
from groundling.lm.write.steps import Stepper
from groundling.lm.write.token_sets import SetKeeper, TokenSets

if TYPE_CHECKING:
    from groundling.lm.language_model import LanguageModel

_LOOK_EVERY = 16
"""Tokens between two looks at what an accelerator has written, for which the host waits: which texts have ended,
and which tokens were left. What is written meanwhile to a text that has ended is dropped. On CPUs each token is
looked at."""


@dataclass(frozen=True)
class Decoded:
    """Texts; what follows a text's last token is 0. Without gradients, on the CPU."""

    tokens: Tensor
    """int64 (num_texts, num_steps); the end token is a text's last where it was reached."""
    lengths: Tensor
    """int64 (num_texts,)."""
    log_probs: Tensor
    """float32 (num_texts, num_steps): of the distribution that each token was sampled from."""
    raw_log_probs: Tensor
    """The same of the model's own distribution, before temperature, filters and masks."""
    sets: list[TokenSets] | None
    """Of each text, where a filter or mask left tokens out; None where none did."""


class Decoder:
    """Writes with a language model, and with NLPO's mask model beside it where there is one.

    Args:
        lm: What writes.
        start_token: What a decoder reads first; None takes the model's own.
        mask: Which tokens NLPO allows.
        mask_lm: Whose logits ``mask`` is taken from; None takes the writer's own.
    """

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
        # Backbones of its own: a step is traced, and never compiled.
        self._stepper = Stepper(Backbone(lm.model), self.start_token)
        self._mask_stepper = Stepper(Backbone(mask_lm.model), self.start_token) if mask_lm is not None else None
        self._steppers = [self._stepper, *([self._mask_stepper] if self._mask_stepper else [])]
        self._announced: set[str] = set()

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, uniforms: Tensor, max_new_tokens: int | None = None
    ) -> Decoded:
        """Continue each prompt.

        Args:
            prompts: Token ids; equal ones are read once.
            sampling: How tokens are chosen.
            uniforms: (num_prompts, num_steps) float64 in [0, 1): one for each token; no text is longer.
            max_new_tokens: Takes the place of sampling's own.

        Raises:
            GroundlingError: a prompt is empty, or too long for the model.
        """
        new_tokens = min(max_new_tokens or sampling.max_new_tokens or uniforms.shape[1], uniforms.shape[1])
        self._check(prompts, new_tokens)
        given = [1 if self.lm.is_encoder_decoder else len(prompt) for prompt in prompts]
        ends = self.ends if sampling.terminate_on_eos else ()
        choice = _Choice(sampling, self.mask, given, self.ends, ends, uniforms[:, :new_tokens], self.lm.device)
        with self.lm.remembering(), nullcontext() if self.mask_lm is None else self.mask_lm.remembering():
            if self._steps_with(given, new_tokens):
                with self.lm.autocast():
                    self._write(prompts, choice)
            else:
                self._generate(prompts, choice)
        return choice.decoded()

    def _check(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        room = self.lm.max_positions
        for index, prompt in enumerate(prompts):
            if not prompt:
                raise GroundlingError(f"prompt {index} is empty: a text needs something to begin with")
            # An encoder-decoder reads the prompt elsewhere; the last token is never read.
            needed = max(len(prompt), new_tokens) if self.lm.is_encoder_decoder else len(prompt) + new_tokens - 1
            if room is not None and needed > room:
                raise GroundlingError(
                    f"prompt {index} has {len(prompt)} tokens, and the text {new_tokens}, but this model has room for "
                    f"{room}: shorten max_prompt_length or max_new_tokens"
                )

        layers = self.lm.backbone.layers
        for index, prompt in enumerate(() if self.lm.is_encoder_decoder else prompts):
            if turn := layers.crossed(len(prompt), len(prompt) + new_tokens - 1):
                raise GroundlingError(
                    f"prompt {index} has {len(prompt)} tokens, and the text {new_tokens}, but beyond {turn} tokens "
                    "this model (longrope) encodes all positions differently, so that no single pass gives the "
                    f"probability of such a text: keep prompt and text within {turn} by max_prompt_length and "
                    "max_new_tokens, or all prompts beyond it"
                )

    def _steps_with(self, given: Sequence[int], new_tokens: int) -> bool:
        return all(self._steps_exactly(stepper, given, new_tokens) for stepper in self._steppers)

    def _steps_exactly(self, stepper: Stepper, given: Sequence[int], new_tokens: int) -> bool:
        layers, longest = stepper.backbone.layers, max(given) + new_tokens
        if layers.window is not None and longest > layers.window:
            why = f"layers that see {layers.window} tokens"
        elif len({layers.stage(count) for count in given}) > 1:
            why = f"texts on both sides of {layers.turns[0]} tokens, beyond which positions are encoded differently"
        elif not stepper.exact:
            why = "writing step by step does not agree exactly with its plain forward"
        else:
            return True
        if why not in self._announced:
            self._announced.add(why)
            name = type(stepper.backbone.model).__name__
            warnings.warn(f"{name} writes by Transformers' loop, which is slower ({why})", stacklevel=2)
        return False

    def _write(self, prompts: Sequence[Sequence[int]], choice: _Choice) -> None:
        writing = self._stepper.begin(prompts, choice.num_steps)
        masking = self._mask_stepper.begin(prompts, choice.num_steps) if self._mask_stepper else None
        rows = torch.arange(len(prompts), device=self.lm.device)
        for step in range(choice.num_steps):
            tokens = choice(writing.logits, rows, step, None if masking is None else masking.logits)
            if step == choice.num_steps - 1:
                return
            if choice.ends and choice.looks_after(step):
                going = choice.going[rows]
                alive = int(going.sum())
                if alive == 0:
                    return
                if alive <= len(rows) // 2:  # copying what is remembered costs about as much as a step
                    rows, tokens = rows[going], tokens[going]
                    for texts in (writing, masking) if masking is not None else (writing,):
                        texts.keep(going.nonzero()[:, 0])
            self._stepper.add(writing, tokens)
            if self._mask_stepper and masking is not None:
                self._mask_stepper.add(masking, tokens)

    def _generate(self, prompts: Sequence[Sequence[int]], choice: _Choice) -> None:
        """The same through Transformers' loop, for models that cannot be stepped otherwise: recurrent ones, say.

        Without autocast, under which this loop would round logits to bfloat16.
        """
        lm, device = self.lm, self.lm.device
        left = not lm.is_encoder_decoder
        model: Any = lm.model
        for indices, manner in lm.padding.of(list(map(len, prompts)), choice.num_steps - 1):
            lines = [prompts[index] for index in indices]
            tokens, mask = padded(lines, device, lm.filler, left)
            rows = torch.tensor(indices, device=device)
            processor = _Chooser(choice, rows, tokens.shape[1] if left else 1, self, mask, tokens, lines)
            settings = GenerationConfig(
                max_new_tokens=choice.num_steps,
                do_sample=False,
                pad_token_id=lm.filler,
                eos_token_id=list(choice.ends) or None,
                decoder_start_token_id=self.start_token,
                use_cache=manner != "anew",
            )
            with configured(model, settings):
                model.generate(
                    input_ids=tokens, attention_mask=mask, logits_processor=LogitsProcessorList([processor])
                )


class _Chosen(NamedTuple):
    """What one step chose; all (rows,), on the model's device."""

    step: int
    rows: Tensor
    """Which texts these are."""
    tokens: Tensor
    log_probs: Tensor
    raw_log_probs: Tensor


class _Choice:
    """Chooses tokens step by step; what was chosen is put together at the end."""

    def __init__(
        self,
        sampling: Sampling,
        mask: Mask | None,
        given: Sequence[int],
        cannot_end: Collection[int],
        ends: Collection[int],
        uniforms: Tensor,
        device: torch.device,
    ) -> None:
        self.sampling = sampling
        self.mask = mask
        self.num_steps = uniforms.shape[1]
        self.ends = ends
        self.first_end = torch.tensor([sampling.first_end(count) for count in given], device=device)
        self.all_may_end = max((sampling.first_end(count) for count in given), default=0)
        self.cannot_end = torch.tensor(sorted(cannot_end), dtype=torch.long, device=device)
        self.end_ids = torch.tensor(sorted(ends), dtype=torch.long, device=device)
        self.num_texts = len(given)
        self.going = torch.ones(len(given), dtype=torch.bool, device=device)
        self.uniforms = uniforms.to(device)
        self.chosen: list[_Chosen] = []
        self.sets = SetKeeper(len(given))
        self._look_every = 1 if device.type == "cpu" else _LOOK_EVERY

    def looks_after(self, step: int) -> bool:
        """Whether the host waits after this step for what was chosen."""
        return (step + 1) % self._look_every == 0

    def __call__(self, logits: Tensor, rows: Tensor, step: int, mask_logits: Tensor | None) -> Tensor:
        """The tokens (rows,) that follow, chosen from (rows, vocabulary); ``rows`` says which texts these are."""
        logits = logits.to(rows.device, torch.float32)
        raw = logits.log_softmax(-1)
        log_probs = self._sampled_from(logits, raw, rows, step, mask_logits)
        if self.sampling.do_sample:
            tokens = draw(log_probs, self.uniforms[rows, step])
        else:
            tokens = log_probs.argmax(-1)
        places = tokens[:, None]
        raw_chosen = raw.gather(1, places)[:, 0]
        chosen = raw_chosen if log_probs is raw else log_probs.gather(1, places)[:, 0]
        self.chosen.append(_Chosen(step, rows, tokens, chosen, raw_chosen))
        if self.mask is not None or self.sampling.chooses_a_set:
            self.sets.add(step, rows, ~log_probs.isinf() & self.going[rows, None])
            if self.looks_after(step):
                self.sets.bring()
        if len(self.end_ids):
            self.going[rows] &= ~torch.isin(tokens, self.end_ids)
        return tokens

    def _sampled_from(
        self, logits: Tensor, raw: Tensor, rows: Tensor, step: int, mask_logits: Tensor | None
    ) -> Tensor:
        banned = None
        if step < self.all_may_end and len(self.cannot_end):
            banned = torch.zeros_like(logits, dtype=torch.bool)
            banned[:, self.cannot_end] = (self.first_end[rows] > step)[:, None]
        allowed = None
        if self.mask is not None:
            scores = logits if mask_logits is None else mask_logits.to(logits.device, torch.float32)
            # A mask that an end token fills alone would leave nothing where it cannot come yet.
            allowed = self.mask(scores if banned is None else scores.masked_fill(banned, -torch.inf))
        if banned is None and allowed is None and not self.sampling.chooses_a_set and self.sampling.temperature == 1:
            return raw
        return filtered(logits, self.sampling, banned, allowed)

    def decoded(self) -> Decoded:
        num_steps = max((drawn.step + 1 for drawn in self.chosen), default=1)
        shape = (self.num_texts, num_steps)
        tokens = self.end_ids.new_zeros(shape)
        log_probs, raw_log_probs = (torch.zeros(shape, device=tokens.device) for _ in range(2))
        for drawn in self.chosen:
            tokens[drawn.rows, drawn.step] = drawn.tokens
            log_probs[drawn.rows, drawn.step] = drawn.log_probs
            raw_log_probs[drawn.rows, drawn.step] = drawn.raw_log_probs
        ended = torch.isin(tokens, self.end_ids)
        before = ended.cumsum(1) - ended.long()  # how many ends come before a token
        counts = before == 0
        for written in (tokens, log_probs, raw_log_probs):
            written.masked_fill_(~counts, 0)
        lengths = counts.sum(1).cpu() if self.chosen else torch.zeros(self.num_texts, dtype=torch.long)
        return Decoded(tokens.cpu(), lengths, log_probs.cpu(), raw_log_probs.cpu(), self.sets.sets(lengths))


class _Chooser(LogitsProcessor):
    """Lets Transformers' greedy loop take what a `_Choice` chose."""

    def __init__(
        self,
        choice: _Choice,
        rows: Tensor,
        given: int,
        decoder: Decoder,
        mask: Tensor,
        tokens: Tensor,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self.choice, self.rows, self.given, self.decoder = choice, rows, given, decoder
        self.mask, self.tokens, self.prompts = mask, tokens, prompts

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.given
        tokens = self.choice(scores, self.rows, step, self._mask_logits(input_ids))
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def _mask_logits(self, written: Tensor) -> Tensor | None:
        """Of the mask model, read anew at each step: slow, and right for every model."""
        stepper = self.decoder._mask_stepper
        if stepper is None:
            return None
        backbone = stepper.backbone
        if backbone.is_encoder_decoder:
            states = backbone.encode(self.tokens, self.mask)
            return backbone.logits(backbone.decode(written, states, self.mask, None)[:, -1])
        added = written[:, self.given :].tolist()
        # Padded on the right, where nothing before it sees it, whatever tells a model its positions.
        lines, mask = padded([[*p, *ids] for p, ids in zip(self.prompts, added, strict=True)], written.device)
        states = backbone.read(lines, None, None)
        return backbone.logits(states[torch.arange(len(lines)), (mask.sum(1) - 1).to(states.device)])
