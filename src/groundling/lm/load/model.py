"""Load models and tokenizers from a folder or hub id, with one-line error messages."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers  # its names are imported on first use
from transformers.utils import find_adapter_config_file

from groundling.errors import ConfigError, GroundlingError, is_out_of_memory, pass_out_of_memory
from groundling.lm.load.model_files import Source, check_model_files, first_line, is_offline, quietly
from groundling.runtime.devices import free_memory, launched, share_of_gpus

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def sees(config: PretrainedConfig) -> bool:
    """Return True for vision-language models for which Transformers has no text-only class with the same weights."""
    if not hasattr(config, "vision_config") or not type(config).__module__.startswith("transformers.models."):
        return False  # custom model code has its own classes
    causal: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return causal is None or not causal.__name__.endswith("ForCausalLM")


Init = Literal["pretrained", "random", "embeddings"]


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    folder = Path(source.path)
    check_model_files(folder)
    if folder.is_dir() and not any(folder.glob("*token*")) and not any(folder.glob("*.model")):
        # Transformers would create an empty tokenizer from the model's type.
        raise ConfigError(
            f"{folder} contains no tokenizer: save the model's tokenizer in the same folder, or pass it "
            "(model.tokenizer=FOLDER; in Python, tokenizer=… to train or processing_class=… to finetune)"
        )
    cached = not folder.is_dir() and is_offline()
    try:
        with quietly():
            loaded = transformers.AutoTokenizer.from_pretrained(source.path, local_files_only=cached, **source.options)
            about = folder / "tokenizer_config.json"
            saved = json.loads(about.read_bytes()) if about.exists() else {}
            # Transformers prefers the model type's own tokenizer to one of another type that was saved with the model.
            kinds = {str(name).removesuffix("Fast") for name in (type(loaded).__name__, saved.get("tokenizer_class"))}
            if len(kinds) > 1 and saved.get("backend") == "tokenizers" and (folder / "tokenizer.json").exists():
                loaded = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            return loaded
    except Exception as error:
        pass_out_of_memory(error)
        reason = first_line(error)
        needs_conversion = any(folder.glob("*.model")) and not (folder / "tokenizer.json").exists()
        if needs_conversion and importlib.util.find_spec("sentencepiece") is None:
            reason = "it is a SentencePiece model file, which needs sentencepiece: pip install sentencepiece"
        raise ConfigError(f"the tokenizer of {source.path} cannot be read: {reason}") from error


def find_dtype(name: str | torch.dtype) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if isinstance(name, torch.dtype):
        return name
    if name not in known:
        raise ConfigError(f"unknown dtype {name!r}: use one of {', '.join(known)}")
    return known[name]


@dataclass(frozen=True)
class Placement:
    """Devices and precision of the weights."""

    device: torch.device
    device_map: str | Mapping[str, Any] | None = None  # Accelerate's map for spreading a model over several devices
    in_4bit: bool = False  # NF4 with double quantisation, computed in bfloat16 (QLoRA, arXiv 2305.14314)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for `from_pretrained`; empty if a plain `to(device)` is enough."""
        if not self.in_4bit:
            return {} if self.device_map is None else self._spread()
        if importlib.util.find_spec("bitsandbytes") is None:
            raise ConfigError("4-bit weights need bitsandbytes: pip install 'groundling[lora]'")
        quantization = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        spread = self._spread() if self.device_map else {"device_map": {"": self.device}}
        return spread | {"quantization_config": quantization}

    def _spread(self) -> dict[str, Any]:
        """Return the device map, limited to this process's share of the GPUs if a machine runs several processes."""
        processes = launched("LOCAL_WORLD_SIZE", 1)
        if processes == 1 or not isinstance(self.device_map, str):
            return {"device_map": self.device_map}
        memory: dict[int | str, int] = {gpu: free_memory(torch.device("cuda", gpu)) for gpu in share_of_gpus()}
        memory["cpu"] = free_memory(torch.device("cpu")) // processes
        return {"device_map": self.device_map, "max_memory": memory}


def load_model(
    source: Source, init: Init, seed: int | None, dtype: torch.dtype, attention: str | None, placement: Placement
) -> PreTrainedModel:
    """Load a causal, encoder-decoder or vision-language model.

    Args:
        init: "pretrained", "random" (from the config alone), or "embeddings" (random except for the pretrained input
            embeddings, and the output embeddings if they are tied).
        seed: Seed for random weights. If None, torch's global generator is used.
        attention: Transformers' `attn_implementation`. If None, "eager" where it is faster, otherwise the default.
    """
    config = load_config(source)
    if attention is None:  # otherwise, the config's setting is ignored
        refuse_kernels(config, source.path)
    placed = placement.options
    biased = hasattr(config, "relative_attention_num_buckets")
    if attention is None and biased and not placed and placement.device.type == "cpu":
        # T5's position bias is trained. On CPUs, fused attention has no gradient for it, and PyTorch's fallback is
        # slower than plain matrix products: a pass with gradients takes 7% longer.
        attention = "eager"
    options = source.options | {"dtype": dtype} | ({"attn_implementation": attention} if attention else {})
    if placed and init != "pretrained":
        raise ConfigError(f"init={init!r} creates all weights on one device: remove device_map and load_in_4bit")
    auto = auto_class(config)
    try:
        if init == "pretrained":
            model = load_pretrained(auto, source.path, config=config, **options, **placed)
            return model if placed else model.to(placement.device)  # type: ignore[arg-type]
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            options.pop("revision", None)
            model = auto.from_config(config, **options)
    except GroundlingError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ConfigError(
                f"the model {source.path} does not fit in the memory of {placement.device} in {dtype} "
                f"({first_line(error, 120)}). Set model.dtype=bfloat16 or model.load_in_4bit=true, spread it over "
                "GPUs with model.device_map=auto, stop other programs, or use a smaller model"
            ) from error
        raise ConfigError(f"the model {source.path} cannot be loaded: {first_line(error)}") from error
    model.name_or_path = source.path
    if init == "embeddings":
        pretrained = load_model(source, "pretrained", None, dtype, attention, Placement(torch.device("cpu")))
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(pretrained.get_input_embeddings().weight)
    return model.to(placement.device)


def auto_class(config: PretrainedConfig) -> Any:
    """Return the Auto class of a causal, encoder-decoder or vision-language model."""
    if sees(config):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def load_config(source: Source) -> PretrainedConfig:
    folder = Path(source.path)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json")
    check_model_files(folder)
    cached = not folder.is_dir() and is_offline()
    try:
        config = transformers.AutoConfig.from_pretrained(source.path, local_files_only=cached, **source.options)
    except Exception as error:
        pass_out_of_memory(error)
        if folder.is_dir():
            raise ConfigError(f"the config of {folder} cannot be read: {first_line(error)}") from error
        raise ConfigError(
            f"no model {source.path!r}: there is no such local folder, and it cannot be loaded from the hub "
            f"({first_line(error)})"
        ) from error
    refuse_adapter(source.path, source.revision)
    return config


def refuse_adapter(path: str, revision: str | None = None) -> None:
    """Reject a model, in a folder or on the hub, that has an adapter next to its weights."""
    # Transformers would load the adapter's settings automatically, and peft would import the module that they name
    # (megatron_core). For adapters that a user specifies, `adapter_base` checks the settings.
    if find_adapter_config_file(path, revision=revision) is not None:
        raise ConfigError(
            f"the model {path} contains an adapter (adapter_config.json), which may name a module to import, but "
            "model files must not run code: delete that file, or use the model without the adapter"
        )


def refuse_kernels(config: PretrainedConfig, path: str) -> None:
    """Reject a config that refers to an attention kernel on the hub, since such kernels are compiled code."""
    for part in (config, *(one for one in vars(config).values() if isinstance(one, transformers.PretrainedConfig))):
        name = str(getattr(part, "_attn_implementation", None))
        if "/" in name:
            raise ConfigError(
                f"the config of {path} sets its attention to {name!r:.80}, which is code from the hub; model files "
                "must not run code: remove attn_implementation from its config.json, or set model.attention=…"
            )


def load_pretrained(auto: Any, path: str, **options: Any) -> PreTrainedModel:
    """Load a folder or hub id with an Auto class; reject models with missing weights."""
    with quietly():
        model, report = auto.from_pretrained(path, output_loading_info=True, **options)
    if report["missing_keys"]:  # Transformers initialises these randomly and only warns
        missing = sorted(report["missing_keys"])
        raise ConfigError(f"{path} lacks some of this model's weights, including {', '.join(missing[:3])}")
    return model
