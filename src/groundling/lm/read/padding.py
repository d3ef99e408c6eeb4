"""Which prompts Transformers' `generate` can continue together, so that each gets what it would get alone.

Causal prompts of several lengths are padded on their left, an encoder's on their right. Models whose states read the
padding, or whose positions count it, continue prompts of one length at a time instead; those whose memory of a text
does not hold, because positions are encoded otherwise from some length on (`Layers.turns`), read it anew at each token.
A trial tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import GenerationConfig

from groundling.errors import GroundlingError, pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.load.loading import first_line
from groundling.lm.read.exactness import REASON_LENGTH, REFUSALS, plain_logits, words_of
from groundling.lm.read.packing import padded

_NEW_TOKENS = 3


Manner = Literal["padded", "alike", "alone", "anew"]
"""How texts are written: prompts of any length together; of one length together; one by one; or those of one length
together, and each read anew for each of its tokens."""
_MANNERS: tuple[Manner, ...] = ("padded", "alike", "alone", "anew")
_SLOW: dict[Manner, str] = {
    "alike": "writes to prompts of one length at a time",
    "alone": "writes to one prompt at a time",
    "anew": "reads a text anew for each token that it writes",
}
Together = tuple[list[int], Manner]
"""Indices of prompts that one batch continues, and how."""


@dataclass
class Batches:
    """Of one model; `filler` is the token that pads, `start_token` what a decoder reads first."""

    backbone: Backbone
    filler: int
    start_token: int
    # Of what was tried, by `Layers.least` and company.
    _manners: dict[tuple[int, int], Manner] = field(default_factory=dict, init=False)
    _announced: set[str] = field(default_factory=set, init=False)

    def of(self, lengths: Sequence[int], more: int) -> list[Together]:
        """Prompts of such lengths in batches, each followed by at most so many more tokens that are read.

        Raises:
            GroundlingError: nothing that `generate` does agrees with the model's plain forward.
        """
        batches: list[Together] = []
        for indices, turn in self._by_stage(lengths, more):
            longest, sizes = max(lengths[index] for index in indices), {lengths[index] for index in indices}
            if turn:
                self._tell("anew", f"positions are encoded differently beyond {turn} tokens")
            read = more + 1 if self.backbone.is_encoder_decoder else longest + more
            least = self.backbone.layers.least(read)
            manner = "anew" if turn else self._manner(least, 1 if len(indices) == 1 else 2 if len(sizes) == 1 else 3)
            if manner == "padded":
                batches.append((indices, manner))
            elif manner == "alone":
                batches += [([index], manner) for index in indices]
            else:
                batches += [([i for i in indices if lengths[i] == size], manner) for size in sorted(sizes)]
        return batches

    def _by_stage(self, lengths: Sequence[int], more: int) -> list[tuple[list[int], int]]:
        """Indices of texts whose positions are encoded alike, with 0; or of those that cross a turn, with that turn."""
        layers = self.backbone.layers
        if self.backbone.is_encoder_decoder or not layers.turns:
            return [(list(range(len(lengths))), 0)] if lengths else []
        groups: dict[tuple[int, int], list[int]] = {}
        for index, length in enumerate(lengths):
            crossed = layers.crossed(length, length + more)
            groups.setdefault((layers.stage(length), crossed), []).append(index)
        return [(indices, crossed) for (_, crossed), indices in groups.items()]

    def _manner(self, least: int, company: int) -> Manner:
        """`company`: 1 of a single text, 2 of texts of one length, 3 of texts of several lengths."""
        if (least, company) not in self._manners:
            self._manners[least, company] = self._find(least, company)
        return self._manners[least, company]

    @torch.no_grad()
    def _find(self, least: int, company: int) -> Manner:
        words = words_of(self.backbone, max(least, 3) + 7, 7, 5)
        one, other, longer = words[:-4], words[4:], words
        examples: dict[Manner, list[list[list[int]]]] = {
            "padded": [[one, longer]],
            "alike": [[one, other]],
            "alone": [[one], [longer]],
            "anew": [[one, other]],
        }
        reasons = []
        for manner in _MANNERS[3 - company :]:
            try:
                error = max(self._error(batch, manner) for batch in examples[manner])
            except REFUSALS as refusal:
                pass_out_of_memory(refusal)
                reasons.append(first_line(refusal, REASON_LENGTH))
                continue
            far = error > self.backbone.tolerance / (10 if self.backbone.exact else 1)
            if far:
                reasons.append(f"logits differ by {error:.2g}")
            if not far or (manner != "padded" and error <= self.backbone.tolerance):
                self._tell(manner, "; ".join(reasons))
                return manner
        if not self.backbone.exact and "logits differ" in " ".join(reasons):
            return "alone"  # in half precision rounding may be all the difference
        raise GroundlingError(
            f"{type(self.backbone.model).__name__} cannot write here: what `generate` gives does not agree with the "
            f"model's plain forward ({'; '.join(reasons)}); use a language model of another family"
        )

    def _error(self, prompts: Sequence[Sequence[int]], manner: Manner) -> float:
        """How far logits lie from those of the plain forward."""
        encodes = self.backbone.is_encoder_decoder
        device = self.backbone.device
        tokens, mask = padded(prompts, device, self.filler, left=not encodes)
        settings = GenerationConfig(
            max_new_tokens=_NEW_TOKENS,
            do_sample=False,
            pad_token_id=self.filler,
            decoder_start_token_id=self.start_token,
            use_cache=manner != "anew",
        )
        model: Any = self.backbone.model
        with torch.autocast(device.type, enabled=False), configured(model, settings):
            output = model.generate(
                input_ids=tokens, attention_mask=mask, return_dict_in_generate=True, output_logits=True
            )
            written = output.sequences[:, 1 if encodes else tokens.shape[1] :].tolist()
            logits = torch.stack(output.logits, dim=1)  # (batch, new tokens, vocabulary)
            plain = [
                plain_logits(self.backbone, self.start_token, prompt, written[row])[:-1]
                for row, prompt in enumerate(prompts)
            ]
        expected = torch.stack(plain).float()
        errors = (logits.float() - expected).abs().masked_fill(logits == expected, 0)  # infinite ones, too
        # Half precision rounds large logits by more.
        unit = 1.0 if self.backbone.exact else max(1.0, float(expected.abs().nan_to_num(posinf=0).max()) / 10)
        return float(errors.nan_to_num(nan=torch.inf).max()) / unit

    def _tell(self, manner: Manner, why: str) -> None:
        """Once, where it is slow."""
        if not why or why in self._announced:
            return
        self._announced.add(why)
        name = type(self.backbone.model).__name__
        warnings.warn(f"{name} {_SLOW[manner]}, which is slower ({why})", stacklevel=2)


@contextmanager
def configured(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Within this context `generate` follows these settings, and nothing of the model's own, such as forced tokens."""
    before = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before
