"""Batches for Transformers' `generate` in which each text is generated as it would be alone.

Causal prompts of several lengths are padded on the left, those of encoders on the right. Models whose states read the
padding, or whose positions count it, continue prompts of one length at a time; models with `Layers.switches` read the
whole text again at each token. An exactness check decides.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from transformers import GenerationConfig

from groundling.errors import GroundlingError, pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.load.sources import first_line
from groundling.lm.read.batching import padded
from groundling.lm.read.exactness import REASON_LENGTH, REFUSALS, example_tokens, plain_logits

_NEW_TOKENS = 3

Mode = Literal["padded", "same_length", "single", "uncached"]
"""Prompts of any length in a batch; of one length; one prompt; or of one length, without a cache."""
_SLOWER: dict[Mode, str] = {
    "same_length": "generates for prompts of one length at a time",
    "single": "generates for one prompt at a time",
    "uncached": "reads the whole text again for each token that it generates",
}


class Batches:
    def __init__(self, backbone: Backbone, filler: int, start_token: int) -> None:
        self.backbone, self.filler, self.start_token = backbone, filler, start_token
        self._modes: dict[int, Mode] = {}  # by `Layers.check_length`

    def of(self, lengths: Sequence[int], more: int) -> list[tuple[list[int], Mode]]:
        """Return batches of prompts of these lengths, followed by at most ``more`` tokens that are read."""
        found: list[tuple[list[int], Mode]] = []
        for indices, switch in self._by_stage(lengths, more):
            if switch:
                mode: Mode = "uncached"
                self._warn(mode, f"positions are encoded differently beyond {switch} tokens")
            else:
                longest = max(lengths[index] for index in indices)
                read = more + 1 if self.backbone.is_encoder_decoder else longest + more
                mode = self._mode(self.backbone.layers.check_length(read))
            if mode == "padded":
                groups = [indices]
            elif mode == "single":
                groups = [[index] for index in indices]
            else:
                sizes = sorted({lengths[index] for index in indices})
                groups = [[index for index in indices if lengths[index] == size] for size in sizes]
            found += [(group, mode) for group in groups]
        return found

    def _by_stage(self, lengths: Sequence[int], more: int) -> list[tuple[list[int], int]]:
        """Group indices of texts of one stage; with the switch that they cross while they grow, or 0."""
        layers = self.backbone.layers
        if self.backbone.is_encoder_decoder or not layers.switches:
            return [(list(range(len(lengths))), 0)] if lengths else []
        groups: dict[tuple[int, int], list[int]] = {}
        for index, length in enumerate(lengths):
            crossed = layers.switch_between(length, length + more)
            groups.setdefault((layers.stage(length), crossed), []).append(index)
        return [(indices, crossed) for (_, crossed), indices in groups.items()]

    def _mode(self, length: int) -> Mode:
        if length not in self._modes:
            self._modes[length] = self._find(length)
        return self._modes[length]

    @torch.no_grad()
    def _find(self, length: int) -> Mode:
        """Return the first mode whose logits are those of the plain forward."""
        backbone, reasons = self.backbone, list[str]()
        longer = example_tokens(backbone, max(length, 3) + 7)
        one, other = longer[:-4], longer[4:]
        examples: dict[Mode, list[list[list[int]]]] = {
            "padded": [[one, longer]],
            "same_length": [[one, other]],
            "single": [[one], [longer]],
            "uncached": [[one, other]],
        }
        for mode, batches in examples.items():
            try:
                error = max(self._error(batch, mode) for batch in batches)
            except REFUSALS as refusal:
                pass_out_of_memory(refusal)
                reasons.append(first_line(refusal, REASON_LENGTH))
                continue
            if error <= backbone.tolerance / (10 if backbone.exact and mode == "padded" else 1):
                self._warn(mode, "; ".join(reasons))
                return mode
            reasons.append(f"logits differ by {error:.2g}")
        if not backbone.exact and "logits differ" in " ".join(reasons):
            return "single"  # in half precision rounding may be all the difference
        raise GroundlingError(
            f"{type(backbone.model).__name__} cannot generate here: `generate` does not agree with the "
            f"model's plain forward ({'; '.join(reasons)}); use a language model of another family"
        )

    def _error(self, prompts: Sequence[Sequence[int]], mode: Mode) -> float:
        """Return the largest difference of logits from those of the plain forward."""
        encodes, device, model = self.backbone.is_encoder_decoder, self.backbone.device, self.backbone.model
        tokens, mask = padded(prompts, device, self.filler, left=not encodes)
        settings = GenerationConfig(
            max_new_tokens=_NEW_TOKENS,
            do_sample=False,
            pad_token_id=self.filler,
            decoder_start_token_id=self.start_token,
            use_cache=mode != "uncached",
            return_dict_in_generate=True,
            output_logits=True,
        )
        with torch.autocast(device.type, enabled=False), only_settings(model, settings):
            output: Any = model.generate(input_ids=tokens, attention_mask=mask)  # type: ignore[operator]
            texts = output.sequences[:, 1 if encodes else tokens.shape[1] :].tolist()
            logits = torch.stack(output.logits, dim=1).float()  # (batch, new tokens, vocabulary)
            plain = [
                plain_logits(self.backbone, self.start_token, prompt, text)[:-1]
                for prompt, text in zip(prompts, texts, strict=True)
            ]
        expected = torch.stack(plain).float()
        errors = (logits - expected).abs().masked_fill(logits == expected, 0)  # infinite ones, too
        # Half precision rounds large logits by more.
        largest = float(expected.abs().nan_to_num(posinf=0).max())
        unit = 1.0 if self.backbone.exact else max(1.0, largest / 10)
        return float(errors.nan_to_num(nan=torch.inf).max()) / unit

    def _warn(self, mode: Mode, why: str) -> None:
        if mode != "padded":
            name = type(self.backbone.model).__name__
            self.backbone.warn_once(f"{name} {_SLOWER[mode]}, which is slower ({why})")


@contextmanager
def only_settings(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Within this context `generate` follows these settings, and not the model's own, such as forced tokens."""
    before = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before
