"""Tiny models of every generative family of Transformers, made from each family's own config."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from tests.lm.families import VOCABULARY

WINDOW, ORIGINAL = 24, 40
"""The number of tokens in a window or chunk, and in the original context of longrope and others."""
FAMILIES = tuple(dict.fromkeys([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES]))
STANDARD_DEVIATION = 0.15
"""The standard deviation of all matrices is close to that of trained models, so that every part has an effect."""
_MOST_WEIGHTS = 3_000_000

_SIZES: dict[str, Any] = (
    dict.fromkeys(["hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "lru_width"], 32)
    | dict.fromkeys(["num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"], 4)
    | dict.fromkeys(["num_decoder_layers", "linear_num_value_heads", "linear_num_key_heads"], 4)
    | dict.fromkeys(["encoder_layers", "num_encoder_layers", "num_key_value_heads", "num_experts_per_tok"], 2)
    | dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"], 4)
    | dict.fromkeys(["decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"], 4)
    | dict.fromkeys(["intermediate_size", "d_ff", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"], 48)
    | dict.fromkeys(["head_dim", "d_kv", "global_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"], 8)
    | dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "state_size", "mamba_d_state"], 8)
    | dict.fromkeys(["mamba_n_heads", "mamba_num_heads", "num_local_experts", "num_experts", "n_routed_experts"], 4)
    | dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size", "moe_ffn_hidden_size"], 24)
    | dict.fromkeys(["n_shared_experts", "n_group", "topk_group", "n_groups", "mamba_n_groups", "mamba_ngroups"], 1)
    | dict.fromkeys(["q_lora_rank", "kv_lora_rank", "qk_head_dim", "mamba_d_head", "mamba_head_dim"], 16)
    | dict.fromkeys(["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"], 256)
    | {"vocab_size": VOCABULARY, "mamba_expand": 2, "mamba_d_ssm": 64, "expert_ffn_hidden_size": 24}
    | {"ffn_hidden_size": 48}
)  # fmt: skip
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
_BOTH = ["sliding_attention", "full_attention"] * 2
_HYBRID = ["linear_attention", "full_attention"] * 2
# Settings with which small models have the family's kinds of layers
_OWN: dict[str, dict[str, Any]] = {
    "mamba2": {"head_dim": 16, "expand": 2, "chunk_size": 16},
    "gemma3_text": {"layer_types": _BOTH},
    "laguna": {"layer_types": _BOTH},
    "mellum": {"layer_types": _BOTH},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "granitemoehybrid": {"layer_types": _HYBRID},
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
}
_SPANS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size", "attention_window_size")
_STARTS_WITH_PADDING = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


def tiny_config(family: str, **changes: Any) -> Any:
    """Return a small version of the family's config.

    Raises:
        ValueError: If it consists of several configs.
    """
    kind = CONFIG_MAPPING[family]
    usual = kind()
    if usual.get_text_config() is not usual:
        raise ValueError(f"{family} is made of several models")
    sizes = {name: size for name, size in _SIZES.items() if getattr(usual, name, None) is not None}
    if family == "prophetnet":  # an alias for two sizes
        sizes.pop("num_hidden_layers")
    starts = {}
    if usual.is_encoder_decoder:
        starts = {"decoder_start_token_id": 0 if family in _STARTS_WITH_PADDING else 1}
    config = kind(**(sizes | _TOKENS | starts | _OWN.get(family, {}) | changes))
    if not config.is_encoder_decoder and hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def with_window(family: str) -> dict[str, Any]:
    """Return config changes that shorten windows and chunks, if any."""
    usual = CONFIG_MAPPING[family]()
    return {name: WINDOW for name in _SPANS if type(getattr(usual, name, None)) is int and getattr(usual, name)}


def with_rope(config: Any, kind: str) -> dict[str, Any]:
    """Return config changes that stretch the context by a kind of RoPE, if supported."""
    given = getattr(config, "rope_parameters", None)
    if not isinstance(given, Mapping) or "rope_theta" not in given or config.is_encoder_decoder:
        return {}
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    half = int(size * given.get("partial_rotary_factor", 1.0)) // 2
    more: dict[str, Any] = {
        "longrope": {
            "short_factor": [1.0] * half,
            "long_factor": [3.0 + 2.0 * place for place in range(half)],
            "original_max_position_embeddings": ORIGINAL,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
        "llama3": {
            "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
        "dynamic": {"factor": 4.0},
        "linear": {"factor": 4.0},
    }[kind]  # fmt: skip
    changes: dict[str, Any] = {"rope_parameters": dict(given) | {"rope_type": kind} | more}
    if hasattr(config, "original_max_position_embeddings"):
        changes["original_max_position_embeddings"] = ORIGINAL
    return changes


@torch.no_grad()
def tiny_model(config: Any, seed: int = 0) -> Any:
    """Return a model with weights of realistic size.

    Raises:
        ValueError: If it is still large.
    """
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in auto.from_config(config).parameters())
    if count > _MOST_WEIGHTS:
        raise ValueError(f"it has {count} weights")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, STANDARD_DEVIATION)
    model.generation_config.forced_eos_token_id = None
    return model
