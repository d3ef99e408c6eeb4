"""Text generation with Transformers' `generate`, including the log-probability of every token."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from groundling.errors import ConfigError, pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.load.model_files import first_line
from groundling.lm.read.batching import padded
from groundling.lm.read.exactness import REASON_LENGTH, REFUSALS, example_tokens, plain_logits
from groundling.tokenization.detokenize import Continuation

DEFAULT_NEW_TOKENS = 32
_MAX_SCORES = 2**27  # Maximum number of filtered and of raw scores per call; together, they take 1 GiB in float32
_NEW_TOKENS = 3  # Number of new tokens in an exactness check
_drawing = threading.Lock()


@dataclass(frozen=True)
class Generation:
    """A continuation of a prompt.

    `text`: the generated text, without special tokens but with its leading space, if any.
    `token_ids`: int64 (num_tokens,), including the end token if it was reached.
    `token_log_probs`: float32 (num_tokens,), for the sampling distribution, after temperature and filters.
    `raw_token_log_probs`: float32 (num_tokens,), for the model's own distribution.
    """

    text: str
    token_ids: Tensor
    token_log_probs: Tensor
    raw_token_log_probs: Tensor


@contextmanager
def sampling_from(seed: int) -> Iterator[None]:
    """Seed torch's global generators within this context, and restore them afterwards.

    Only one thread can enter at a time, because a judge may generate text in the background while a run evaluates.
    """
    with _drawing, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


class Generator:
    """Generates texts with one model; ``filler`` is the padding token of prompts."""

    def __init__(self, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, filler: int, start_token: int) -> None:
        self.backbone, self.tokenizer, self.filler, self.start_token = backbone, tokenizer, filler, start_token
        self._pads: dict[int, bool] = {}  # keyed by `Layers.check_length`

    def __call__(self, prompts: Sequence[Sequence[int]], settings: dict[str, Any]) -> list[Generation]:
        """Continue each prompt (token ids) `num_return_sequences` times; ``settings`` are arguments of `generate`."""
        copies = settings.get("num_return_sequences") or 1
        rows = copies * (settings.get("num_beams") or 1)
        vocabulary = self.backbone.model.config.get_text_config().vocab_size
        new_tokens = settings.get("max_new_tokens", settings.get("max_length", DEFAULT_NEW_TOKENS))
        at_once = max(1, _MAX_SCORES // (vocabulary * new_tokens * rows))
        generations: dict[int, list[Generation]] = {}
        # The last token is never read.
        for together in self.batches(list(map(len, prompts)), new_tokens - 1):
            by_length = sorted(together, key=lambda index: -len(prompts[index]))
            for first in range(0, len(by_length), at_once):
                batch = by_length[first : first + at_once]
                made = self._generate([prompts[index] for index in batch], settings)
                for place, index in enumerate(batch):
                    generations[index] = made[place * copies : (place + 1) * copies]
        return [generation for index in range(len(prompts)) for generation in generations[index]]

    def _generate(self, prompts: Sequence[Sequence[int]], settings: dict[str, Any]) -> list[Generation]:
        model: Any = self.backbone.model
        encodes = self.backbone.is_encoder_decoder
        tokens, mask = padded(prompts, self.backbone.device, self.filler, left=not encodes)
        limits = {} if "max_length" in settings else {"max_new_tokens": DEFAULT_NEW_TOKENS}
        output = model.generate(
            input_ids=tokens,
            attention_mask=mask,
            **({"pad_token_id": self.filler} | limits | settings | {"stop_strings": None}),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        texts = output.sequences[:, 1 if encodes else tokens.shape[1] :]  # (rows, num_steps)
        beams = getattr(output, "beam_indices", None)
        sampled, raw = (_log_probs(scores, texts, beams) for scores in (output.scores, output.logits))
        ends = settings.get("eos_token_id", settings.get("generation_config", model.generation_config).eos_token_id)
        lengths = (beams >= 0).sum(1) if beams is not None else _lengths(texts, ends)
        generations = []
        for row, length in enumerate(lengths.tolist()):
            ids, prompt = texts[row, :length], () if encodes else prompts[row * len(prompts) // len(texts)]
            text = Continuation(self.tokenizer, prompt).append(*ids.tolist())
            generations.append(Generation(text, ids, sampled[row, :length], raw[row, :length]))
        return generations

    def batches(self, lengths: Sequence[int], more: int) -> list[list[int]]:
        """Return batches of prompts, padded if that is exact; at most ``more`` tokens are read after each prompt."""
        read = more + (1 if self.backbone.is_encoder_decoder else max(lengths))
        check = self.backbone.layers.check_length(read)
        if check not in self._pads:
            self._pads[check] = self._find(check)
        indices = list(range(len(lengths)))
        return [indices] if self._pads[check] else [[index] for index in indices]

    @torch.no_grad()
    def _find(self, length: int) -> bool:
        """Return True if padded batches yield the logits of a plain forward pass; raise if single prompts do not."""
        backbone, reasons = self.backbone, list[str]()
        longer = example_tokens(backbone, max(length, 3) + 7)
        for pads, batches in ((True, [[longer[:-4], longer]]), (False, [[longer[:-4]], [longer]])):
            try:
                error = max(map(self._error, batches))
            except REFUSALS as refusal:
                pass_out_of_memory(refusal)
                reasons.append(first_line(refusal, REASON_LENGTH))
                continue
            # In half precision, any difference for single prompts may be due to rounding.
            if error <= backbone.tolerance / (10 if backbone.exact and pads else 1) or not (pads or backbone.exact):
                if not pads:
                    name, why = type(backbone.model).__name__, "; ".join(reasons)
                    backbone.warn_once(f"{name} generates from one prompt at a time, which is slower ({why})")
                return pads
            reasons.append(f"logits differ by {error:.2g}")
        raise ConfigError(
            f"{type(backbone.model).__name__} cannot generate here: `generate` does not match the model's plain "
            f"forward pass ({'; '.join(reasons)}); use a language model from a different family"
        )

    def _error(self, prompts: Sequence[Sequence[int]]) -> float:
        """Return the largest difference from the logits of a plain forward pass."""
        encodes, device, model = self.backbone.is_encoder_decoder, self.backbone.device, self.backbone.model
        tokens, mask = padded(prompts, device, self.filler, left=not encodes)
        settings = GenerationConfig(
            max_new_tokens=_NEW_TOKENS,
            do_sample=False,
            pad_token_id=self.filler,
            decoder_start_token_id=self.start_token,
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
        errors = (logits - expected).abs().masked_fill(logits == expected, 0)  # also handles infinite logits
        # In half precision, large logits have larger rounding errors.
        largest = float(expected.abs().nan_to_num(posinf=0).max())
        unit = 1.0 if self.backbone.exact else max(1.0, largest / 10)
        return float(errors.nan_to_num(nan=torch.inf).max()) / unit


@contextmanager
def only_settings(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Within this context, `generate` uses these settings instead of the model's own, such as forced tokens."""
    before = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before


def _log_probs(scores: Sequence[Tensor], texts: Tensor, beams: Tensor | None) -> Tensor:
    """Return the log-probability of each token, float32 (rows, num_steps).

    Args:
        scores: (rows, vocabulary) for each step.
        texts: (rows, num_steps).
        beams: (rows, num_steps), the row of each step's scores that belongs to the text, negative after its end.
    """
    steps = []
    for step in range(texts.shape[1]):
        step_scores = scores[step].float()
        if beams is not None:
            step_scores = step_scores[beams[:, step].clamp(min=0)]
        steps.append(step_scores.log_softmax(-1).gather(1, texts[:, step, None])[:, 0])
    return torch.stack(steps, dim=1) if steps else texts.new_zeros(texts.shape, dtype=torch.float32)


def _lengths(texts: Tensor, ends: int | list[int] | None) -> Tensor:
    """Return int64 (rows,), the number of tokens of each text up to and including the first end token."""
    end_ids = torch.tensor([] if ends is None else ends, device=texts.device, dtype=texts.dtype).reshape(-1)
    before = torch.isin(texts, end_ids).cumsum(1).roll(1, 1) if texts.shape[1] else texts
    before[:, :1] = 0
    return (before == 0).sum(1)
