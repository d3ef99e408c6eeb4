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
    hub id. The text is read in windows as wide as the model, each begun ``stride`` tokens after the last, and each
    token is predicted once. The original weighed a window's mean by one token too many in the first of them: with
    ``compat``.
    """

    lm: "LanguageModel | str" = field(repr=False)
    stride: int = 512
    """Tokens between the beginnings of windows: fewer give every token more to read, and cost more."""
    device: str = "auto"
    """Where a model is put that ``lm`` names."""

    needs_references = True

    _lm: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` on a stride that goes nowhere."""
        super().__post_init__()
        if self.stride < 1:
            raise ConfigError(f"stride must be at least 1, got {self.stride}")

    def check(self) -> None:
        """The model."""
        from groundling.lm.loading import resolve

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
        tokens = lm.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0].to(
            lm.device
        )  # (num_tokens,)
        total, count = 0.0, 0
        for start, first, end in self._windows(len(tokens), _width(lm)):
            predicted = end - max(first, start + 1)  # nothing predicts a window's first token
            if predicted < 1:
                continue
            with torch.inference_mode(), lm.autocast():
                logits = lm.model(input_ids=tokens[None, start:end]).logits[0, :-1].float()
            losses = torch.nn.functional.cross_entropy(
                logits[-predicted:], tokens[end - predicted : end], reduction="sum"
            )
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


def _width(lm: Any) -> int:
    """Tokens that the model can read at once."""
    config = lm.model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1024)
