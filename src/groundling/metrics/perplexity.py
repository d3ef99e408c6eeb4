"""Perplexity of the references."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch

from groundling.errors import ConfigError
from groundling.fields import Ge, Provided
from groundling.metrics.metric import Figures, Meta, Metric, MetricResult, References, Texts, check_model, metrics

if TYPE_CHECKING:
    from groundling.lm import LanguageModel


@metrics.register("causal_perplexity")
@dataclass(kw_only=True)
class CausalPerplexity(Metric):
    """Perplexity of a causal language model on all references, joined by blank lines.
    The text is read in windows of ``width`` tokens, which begin every ``stride`` tokens, and each token is predicted
    once. With ``compat`` the mean of the first window has the weight of one token too many, as in the original.
    """

    lm: Annotated["LanguageModel | str", Provided("lm", settable=str)] = field(repr=False)
    """The language model under training, or the folder or hub id of another."""
    stride: Annotated[int, Ge(1)] = 512
    """Tokens between the beginnings of windows; fewer give every token more context, and cost more."""
    width: Annotated[int, Ge(2)] = 1024
    """Tokens of a window, if the model reads as many; the default is GPT-2's context length."""
    device: str = "auto"
    """Device of a model that ``lm`` names."""

    needs_references = True

    _lm: Any = field(default=None, init=False, repr=False)

    def check(self) -> None:
        from groundling.lm.load.model_files import resolve

        if isinstance(self.lm, str):
            config = check_model("language model", resolve(self.lm))
            _check_causal(bool(config.is_encoder_decoder))
        else:
            _check_causal(self.lm.is_encoder_decoder)

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
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
        """For each window its beginning, the first token to predict, and its end."""
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
    """Context length of the model; None if its config sets no limit."""
    return getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
