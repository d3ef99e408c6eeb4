"""Language models of vision-language models: texts are read as the whole model reads them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load.model import sees
from groundling.lm.load.model_files import STARTERS
from groundling.tokenization.chat import Chat
from tests.thorough import THOROUGH, one_in

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "embed_dim": 32,
    "num_heads": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "num_hidden_layers": 1,
    "image_size": 28,
    "patch_size": 14,
}
_SECTIONS = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_vl": _SECTIONS,
    "qwen2_5_vl": _SECTIONS,
    "qwen3_vl": _SECTIONS,
    "qwen3_vl_moe": _SECTIONS | _EXPERTS,
    "gemma3": {},
    "llava": {},
    "llava_onevision": {},
    "idefics3": {},
    "smolvlm": {},
    "mistral3": {},
    "internvl": {},
    "paligemma": {},
    "lfm2_vl": {},
}
_TOKENS = [5, 17, 300, 9, 9, 40, 801, 3]
_IN_PARTS = (
    "{% for m in messages %}<{{ m['role'] }}>{% for part in m['content'] %}{{ part['text'] }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _made(family: str, folder: Path) -> Any:
    """Save a tiny model with weights of real size and a tokenizer, and return the whole model."""
    usual = AutoConfig.for_model(family)
    text = _TEXT | _FAMILIES.get(family, {})
    if family not in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"):
        text = {**usual.get_text_config().to_dict(), **text}
        text.pop("layer_types", None)
    seen = usual.vision_config.to_dict()
    vision = seen | {name: value for name, value in _VISION.items() if hasattr(usual.vision_config, name)}
    config = AutoConfig.for_model(family, text_config=text, vision_config=vision)
    for name in vars(config):
        if name.endswith(("_token_id", "_token_index")) and isinstance(getattr(config, name), int):
            setattr(config, name, 1023)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    for path in STARTERS["starter-causal"].glob("*token*"):
        shutil.copy(path, folder)
    return model


@torch.no_grad()
def _log_probs(model: Any) -> torch.Tensor:
    tokens = torch.tensor([_TOKENS])
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.log_softmax(-1)


@pytest.mark.parametrize("family", one_in(3, _FAMILIES))
def test_texts_are_read_as_by_the_whole_model(family: str, tmp_path: Path) -> None:
    whole = _made(family, tmp_path / "whole")
    lm = LanguageModel.from_pretrained(tmp_path / "whole")
    assert type(lm.model).__name__.endswith("ForCausalLM")
    assert sum(p.numel() for p in lm.parameters()) < sum(p.numel() for p in whole.parameters())
    torch.testing.assert_close(_log_probs(lm.model), _log_probs(whole), atol=1e-4, rtol=0)

    # The saved model is an ordinary language model.
    lm.save_pretrained(tmp_path / "saved")
    assert "vision_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    again = LanguageModel.from_pretrained(tmp_path / "saved")
    assert _log_probs(again.model).equal(_log_probs(lm.model))


def test_random_weights_and_pretrained_embeddings(tmp_path: Path) -> None:
    whole = _made("llava", tmp_path)
    made = LanguageModel.from_pretrained(tmp_path, init="random", seed=1)
    embedded = LanguageModel.from_pretrained(tmp_path, init="embeddings", seed=1)
    assert type(made.model) is type(embedded.model)
    weights = embedded.model.get_input_embeddings().weight
    assert weights.equal(whole.get_input_embeddings().weight)
    assert not made.model.get_input_embeddings().weight.equal(weights)


def test_a_language_model_with_other_probabilities_is_refused(tmp_path: Path) -> None:
    _made("aya_vision", tmp_path)  # the whole model ignores its language model's logit scale
    with pytest.raises(GroundlingError, match="alone gives other probabilities than the whole"):
        LanguageModel.from_pretrained(tmp_path)


def test_a_language_model_that_transformers_lacks_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("glm4v").save_pretrained(tmp_path)
    with pytest.raises(GroundlingError, match=r"vision-language model \(glm4v\).* cannot be loaded without the rest"):
        LanguageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("options", one_in(2, [{"device_map": "auto"}, {"load_in_4bit": True, "lora": {"r": 2}}]))
def test_device_maps_and_4_bits(options: dict[str, Any], tmp_path: Path) -> None:
    _made("qwen2_5_vl", tmp_path)
    plain, placed = (LanguageModel.from_pretrained(tmp_path, **more) for more in ({}, options))
    assert type(placed.model) is type(plain.model)
    far = (_log_probs(placed.model) - _log_probs(plain.model)).abs().mean().item()
    assert far == 0 if "device_map" in options else 0 < far < 1.5


def test_attention_for_gpus_is_not_called_on_the_cpu(tmp_path: Path) -> None:
    def on_cuda(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("only CUDA tensors")

    AttentionInterface.register("test-cuda", on_cuda)
    _made("llava", tmp_path)
    lm = LanguageModel.from_pretrained(tmp_path, attention="test-cuda")
    assert lm.model.config._attn_implementation == "test-cuda"
    with pytest.raises(RuntimeError, match="only CUDA tensors"):
        _log_probs(lm.model)


def test_sixteen_bits_differ_by_rounding(tmp_path: Path) -> None:
    _made("qwen3_vl", tmp_path)
    assert LanguageModel.from_pretrained(tmp_path, dtype="bfloat16").model.dtype == torch.bfloat16


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    _made("llava", tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "language_model" in name and "up_proj" in name)
    weights[name][0, 0] = torch.nan
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(GroundlingError, match=r"gives other probabilities than the whole model \(by nan"):
        LanguageModel.from_pretrained(tmp_path)


@THOROUGH
def test_every_vision_language_config_is_accepted_or_refused(tmp_path: Path) -> None:
    count = 0
    for kind in CONFIG_MAPPING_NAMES:
        try:
            config = AutoConfig.for_model(kind)
        except Exception:  # some have no default settings
            continue
        if not sees(config):
            continue
        folder = tmp_path / kind
        config.save_pretrained(folder)
        with pytest.raises(GroundlingError):  # there are no weights
            LanguageModel.from_pretrained(folder)
        count += 1
    assert count > 40


class Own(LlamaConfig):
    """The config of a model with its own code."""

    model_type = "test_own_vl"

    def __init__(self, vision_config: Any = None, **more: Any) -> None:
        super().__init__(**more)
        self.vision_config = vision_config


class OwnLM(LlamaForCausalLM):
    config_class = Own


def test_a_model_with_its_own_code_keeps_its_class(tmp_path: Path) -> None:
    AutoConfig.register("test_own_vl", Own, exist_ok=True)
    AutoModelForCausalLM.register(Own, OwnLM, exist_ok=True)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    Own(vision_config={"depth": 1}, vocab_size=1024, **sizes).save_pretrained(tmp_path)
    for path in STARTERS["starter-causal"].glob("*token*"):
        shutil.copy(path, tmp_path)
    assert type(LanguageModel.from_pretrained(tmp_path, init="random").model) is OwnLM


def test_an_adapter_of_the_whole_model_is_loaded_into_the_language_model(tmp_path: Path) -> None:
    _made("llava", tmp_path / "whole")
    lm = LanguageModel.from_pretrained(tmp_path / "whole", lora={"r": 2, "target_modules": ["q_proj"]})
    for name, parameter in lm.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    lm.save_pretrained(tmp_path / "adapter")
    assert _log_probs(LanguageModel.from_pretrained(tmp_path / "adapter").model).equal(_log_probs(lm.model))
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    longer = {name.replace(".layers.", ".language_model.layers."): weight for name, weight in weights.items()}
    save_file(longer, file, {"format": "pt"})
    again = LanguageModel.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(_log_probs(again.model), _log_probs(lm.model), atol=1e-5, rtol=0)

    save_file({name.replace("layers.0", "layers.7"): weight for name, weight in weights.items()}, file)
    with pytest.raises(GroundlingError, match=r"is not one of the model that it names: model\.layers\.0"):
        LanguageModel.from_pretrained(tmp_path / "adapter")


def test_a_template_that_takes_contents_in_parts_only() -> None:
    tokenizer = LanguageModel.from_pretrained("starter-causal").tokenizer
    tokenizer.chat_template = _IN_PARTS
    tokens = Chat(tokenizer).opening("Act.", "You see a wall")
    printed = "<system>Act.<user>You see a wall<assistant>"  # Transformers trims line breaks after blocks
    assert tokens == tokenizer(printed, add_special_tokens=False)["input_ids"]
