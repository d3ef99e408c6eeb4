"""Vision-language models read texts in the same way as their own forward."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM

from groundling.errors import GroundlingError
from groundling.lm import LanguageModel
from groundling.lm.load.model_files import STARTERS
from tests.lm.reference import plain_scores
from tests.thorough import one_in

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 8,
    "vocab_size": 1408,
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
    "lfm2_vl": {},
}
ACTIONS = ["go forward", "turn left", "drop"]


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


@pytest.mark.parametrize("family", one_in(3, _FAMILIES))
def test_texts_are_read_as_by_the_whole_model_and_only_its_text_part_learns(family: str, tmp_path: Path) -> None:
    _made(family, tmp_path / "made")
    lm = LanguageModel.from_pretrained(tmp_path / "made")
    prompts = ["You see a wall", "Goal of the agent: go to the red ball"]
    scores = lm.score(prompts, ACTIONS)
    with torch.no_grad():
        for prompt, of_prompt in zip(prompts, scores, strict=True):
            torch.testing.assert_close(of_prompt.detach(), plain_scores(lm, prompt, ACTIONS), atol=1e-4, rtol=0)
    torch.cat(scores).sum().backward()
    learns = [p for p in lm.parameters() if p.requires_grad]
    assert 0 < len(learns) < len(list(lm.parameters()))
    assert sum(p.grad is None for p in learns) <= (len(learns) // 2 if "moe" in family else 0)
    lm.save_pretrained(tmp_path / "saved")
    again = LanguageModel.from_pretrained(tmp_path / "saved")
    assert type(again.model) is type(lm.model)
    assert torch.equal(torch.cat(again.score(prompts, ACTIONS)), torch.cat(scores))


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
    Own(vision_config={"depth": 1}, vocab_size=1408, **sizes).save_pretrained(tmp_path)
    for path in STARTERS["starter-causal"].glob("*token*"):
        shutil.copy(path, tmp_path)
    assert type(LanguageModel.from_pretrained(tmp_path, init="random").model) is OwnLM


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    _made("llava", tmp_path / "whole")
    lm = LanguageModel.from_pretrained(tmp_path / "whole", lora={"r": 2, "target_modules": ["q_proj"]})
    for name, parameter in lm.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
            assert parameter.requires_grad == ("language_model" in name)
    lm.save_pretrained(tmp_path / "adapter")
    again = LanguageModel.from_pretrained(tmp_path / "adapter")
    assert torch.equal(again.score(["go"], ACTIONS)[0], lm.score(["go"], ACTIONS)[0])

    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({name.replace("layers.0", "layers.7"): weight for name, weight in load_file(file).items()}, file)
    with pytest.raises(GroundlingError, match=r"does not match its base model: only one of them has model\."):
        LanguageModel.from_pretrained(tmp_path / "adapter")
