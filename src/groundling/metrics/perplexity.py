"""How well a language model predicts the references."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from groundling.errors import ConfigError
from groundling.metrics.libraries import check_model
from groundling.metrics.metric import Meta, Metric, MetricResult, metrics

if TYPE_CHECKING:
    from groundling.lm import LanguageModel


@metrics.register("causal_perplexity")
@dataclass(kw_only=True)
class CausalPerplexity(Metric):
    """Perplexity of a causal language model on all references, joined by blank lines.

    An argument called ``lm`` receives the language model under training, as a policy's does; or it is a folder or
    hub id. The text is read in windows of ``width`` tokens, each begun ``stride`` tokens after the last, and each
    token is predicted once. The original weighed a window's mean by one token too many in the first of them: with
    ``compat``.
    """

    lm: "LanguageModel | str" = field(repr=False)
    stride: int = 512
    """Tokens between the beginnings of windows: fewer give every token more to read, and cost more."""
    width: int = 1024
    """Tokens of a window, unless the model reads fewer; the default is all that GPT-2 reads."""
    device: str = "auto"
    """Where a model is put that ``lm`` names."""

    needs_references = True

    _lm: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` on a stride that goes nowhere, or a width that leaves nothing to read."""
        super().__post_init__()
        for name, least in (("stride", 1), ("width", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def check(self) -> None:
        """The model."""
        from groundling.lm.load.loading import resolve

        if isinstance(self.lm, str):
            config = check_model("language model", resolve(self.lm))
            _check_causal(bool(config.is_encoder_decoder))
        else:
            _check_causal(self.lm.is_encoder_decoder)

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``fluency_metrics/perplexity``: 1 is perfect; NaN of fewer than two tokens."""
        lm = self._language_model()
        text = "\n\n".join(text for given in references for text in given)
        tokens = lm.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0].to(lm.device)  # (num_tokens,)
        total, count = 0.0, 0
        width = min(self.width, _context(lm) or self.width)
        for start, first, end in self._windows(len(tokens), width):
            predicted = end - max(first, start + 1)  # nothing predicts a window's first token
            if predicted < 1:
                continue
            with torch.no_grad(), lm.autocast():
                states = lm.backbone.read(tokens[None, start : end - 1], None, None)[0, -predicted:]
                logits = lm.backbone.logits(states).float()  # (predicted, vocabulary)
            wanted = tokens[end - predicted : end].to(logits.device)
            losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
            weight = end - first if self.compat else predicted
            total += losses.item() / predicted * weight
            count += weight
        return {"fluency_metrics/perplexity": MetricResult(math.exp(total / count) if count else math.nan)}

    def _windows(self, length: int, width: int) -> Iterator[tuple[int, int, int]]:
        """Of each window: where it begins, its first token to be predicted, its end."""
        stride = min(self.stride, width)
        for first in range(0, length, stride):
            end = min(first + stride, length)
            yield max(0, first + stride - width), first, end

    def _language_model(self) -> Any:
        if self._lm is None:
            from groundling.lm import LanguageModel

            lm = self.lm
            self._lm = LanguageModel.from_pretrained(lm, device=self.device) if isinstance(lm, str) else lm
        _check_causal(self._lm.is_encoder_decoder)
        return self._lm


def _check_causal(is_encoder_decoder: bool) -> None:
    if is_encoder_decoder:
        raise ConfigError(
            "causal_perplexity needs a causal language model, not an encoder-decoder: name one with lm=FOLDER_OR_ID"
        )


def _context(lm: Any) -> int | None:
    """Tokens that the model can read at once; None if its config sets no limit."""
    return getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
