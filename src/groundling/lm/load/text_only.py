"""The language model of a vision-language model, loaded without its vision part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from groundling.errors import GroundlingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Language models whose positions have three coordinates, for pictures. For texts all three are equal, and the model is
# a causal one of Transformers: its type, and settings that the vision-language config lacks.
_SAME_ON_TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl_text": ("qwen2", {}),
    "qwen2_5_vl_text": ("qwen2", {}),
    "qwen3_vl_text": ("qwen3", {}),
    "qwen3_vl_moe_text": ("qwen3_moe", {"norm_topk_prob": True}),
}
# Largest difference of log-probabilities, in nats: in float32, and in 16 bits, which round by the order of sums.
_TOLERANCE, _ROUNDED_TOLERANCE = 1e-3, 0.25


def sees(config: PretrainedConfig) -> bool:
    """Return True for vision-language models of Transformers that have no causal model with the same weights."""
    if not hasattr(config, "vision_config") or not type(config).__module__.startswith("transformers.models."):
        return False  # code that comes with a model has its own classes
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return causal is None or not causal.__name__.endswith("ForCausalLM")


def text_config(config: PretrainedConfig, path: str) -> PretrainedConfig:
    """Return the config of a vision-language model's language model; raise if Transformers has none such."""
    text = config.get_text_config()
    if text.model_type in _SAME_ON_TEXTS:
        kind, more = _SAME_ON_TEXTS[text.model_type]
        settings = {name: value for name, value in text.to_dict().items() if name != "model_type"} | more
        rope = settings.get("rope_parameters") or {}
        settings["rope_parameters"] = {name: value for name, value in rope.items() if not name.startswith("mrope")}
        text = AutoConfig.for_model(kind, **settings)
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise GroundlingError(
            f"{path} is a vision-language model ({config.model_type}), and its language model ({text.model_type}) "
            "cannot be loaded without the rest: take a model whose language model can, such as Qwen-VL, Gemma 3, "
            "LLaVA or SmolVLM"
        )
    text.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", text.tie_word_embeddings))
    return text


def load_text_only(
    path: str, config: PretrainedConfig, text: PretrainedConfig, options: dict[str, Any], placed: dict[str, Any]
) -> PreTrainedModel:
    """Load the pretrained language model of a vision-language model.

    The whole model is loaded first, on the CPU, and both must give the same probabilities for a few tokens. ``text``:
    by `text_config`; ``placed``: arguments of `from_pretrained` that place the weights, empty: on the CPU.
    """
    attention = options.pop("attn_implementation", None)  # which may be for GPUs only
    loaded: Any = AutoModelForImageTextToText.from_pretrained(path, config=config, output_loading_info=True, **options)
    whole, report = loaded
    if report["missing_keys"]:
        raise GroundlingError(
            f"{path} lacks weights of this model, among them {', '.join(sorted(report['missing_keys'])[:3])}"
        )
    weights = {f"model.{name}": weight for name, weight in whole.get_decoder().state_dict().items()}
    if not text.tie_word_embeddings:
        head = whole.get_output_embeddings().state_dict()
        weights |= {f"lm_head.{name}": weight for name, weight in head.items()}
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]
    chosen = {"config": text, "state_dict": weights, "dtype": options["dtype"]}
    model, report = causal.from_pretrained(None, output_loading_info=True, **chosen)
    if report["missing_keys"] or report["unexpected_keys"]:
        strange = sorted([*report["missing_keys"], *report["unexpected_keys"]])
        raise GroundlingError(f"the language model of {path} is not like others of its kind: {', '.join(strange[:3])}")
    tolerance = _TOLERANCE if model.dtype == torch.float32 else _ROUNDED_TOLERANCE
    difference = _difference(whole.eval(), model.eval())
    if not difference <= tolerance:  # or it is NaN
        raise GroundlingError(
            f"the language model of {path} alone gives other probabilities than the whole model (by "
            f"{difference:.2g} nats), so it cannot be used without the vision part: take another model"
        )
    if placed:
        model = causal.from_pretrained(None, **chosen, **placed)
    if attention is not None:
        model.set_attn_implementation(attention)
    model.name_or_path = path
    return model


@torch.no_grad()
def _difference(whole: PreTrainedModel, model: PreTrainedModel) -> float:
    """Return the largest difference of log-probabilities of a few tokens, in nats."""
    tokens = torch.arange(5, 21)[None] % model.config.vocab_size  # (1, 16)

    def log_probs_of(one: PreTrainedModel) -> Tensor:
        logits = one(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
        log_probs: Tensor = logits.float().log_softmax(-1)
        return log_probs

    return (log_probs_of(whole) - log_probs_of(model)).abs().max().item()
