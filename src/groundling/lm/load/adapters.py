"""Add, load, save and merge LoRA adapters (arXiv 2106.09685)."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import nn

from groundling.errors import ConfigError, GroundlingError, importing, pass_out_of_memory
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.lm.load.gguf import name_of
from groundling.lm.load.model_files import ADAPTER_CONFIG, first_line, weights_of

if TYPE_CHECKING:  # slow to import, and not needed by commands without a model
    from transformers import PreTrainedModel

_NO_REFERENCE = "so the model without the adapter cannot serve as the reference"
_ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {
    "lora_dropout": ((0, None), "dropout would make PPO's probability ratios random; set it to 0"),
    "init_lora_weights": (
        (True, False, "gaussian", "orthogonal"),
        f"it changes the base weights, {_NO_REFERENCE}, and changes them again when the adapter is loaded; use true, "
        "false, gaussian or orthogonal",
    ),
    "bias": (("none",), f"trained biases remain when the adapter is disabled, {_NO_REFERENCE}; remove this setting"),
    "alora_invocation_tokens": (
        (None, []),
        "the adapter would be active only after these tokens, so every prompt would need them; remove this setting",
    ),
    "trainable_token_indices": (
        (None, []),
        "embeddings trained for individual tokens cannot be saved alongside the model's; train all of them (for "
        "example with modules_to_save: [embed_tokens]), or remove this setting",
    ),
}
"""The peft settings that are restricted here, with their allowed values and the reason for rejecting others."""


def add_lora(model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
    """Freeze a model and add trainable low-rank adapters in place; ``settings`` are `peft.LoraConfig` arguments."""
    # The model without the adapter must remain usable as the reference.
    lora_config = _peft().LoraConfig
    for name, (allowed, reason) in _ALLOWED.items():
        if name in settings and settings[name] not in allowed:
            raise ConfigError(f"{name}={settings[name]} cannot be used: {reason}")
    try:
        # Convert to plain containers, because settings may come from Hydra.
        plain = {key: list(value) if _is_listlike(value) else value for key, value in settings.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft corrects this setting itself
            model.add_adapter(lora_config(**plain))
        _widen_adapters(model)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"these LoRA settings cannot be used: {first_line(error)}") from error


def load_adapter(model: PreTrainedModel, path: str, settings: Mapping[str, Any] | None) -> None:
    """Add the adapter saved in `path` as a trainable one; `settings`, if passed, must match it."""
    _peft()
    try:
        model.load_adapter(path, is_trainable=True)
        _widen_adapters(model)
        # Set the weights again: half precision rounded them, and Transformers does not load DoRA's magnitudes.
        _peft().set_peft_model_state_dict(model, _adapter_weights(model, path), "default")
    except GroundlingError:
        raise
    except Exception as error:
        pass_out_of_memory(error)
        raise ConfigError(f"the adapter in {path} cannot be loaded: {first_line(error)}") from error
    adapter: Any = model.peft_config["default"]
    if getattr(adapter, "alora_invocation_tokens", None):
        raise ConfigError(
            f"the adapter in {path} is active only after certain tokens (alora_invocation_tokens), which is not "
            "supported: use a different adapter"
        )
    # peft would look this name up on the hub. Paths of local folders are kept, so that a resumed run saves them again.
    if not _is_model_folder(adapter.base_model_name_or_path):
        adapter.base_model_name_or_path = model.name_or_path
    saved = adapter.to_dict()
    for key, value in (settings or {}).items():
        if value == "all-linear":  # peft saves the names of the layers instead
            continue
        wanted = set(value) if _is_listlike(value) else value
        saved_value = set(saved[key]) if _is_listlike(saved.get(key)) else saved.get(key)
        if wanted != saved_value:
            raise ConfigError(f"the adapter in {path} was created with {key}={saved_value}, not {wanted}")


def merge_adapters(module: nn.Module) -> None:
    """Merge LoRA adapters into their base weights in place, so that acting costs no more than without adapters.

    Results are equal up to rounding. The module must not be trained or saved afterwards. A layer keeps its adapter if
    the merged weights would be wrong or imprecise: if other modules use the same base weights (a tied embedding, or a
    policy that shares them with a value adapter), if the adapter has a bias but the layer does not, or if the weights
    are not float32 on a CPU, since rounding could lose the adapter's updates.
    """
    if not any(getattr(one, "_hf_peft_config_loaded", False) for one in module.modules()):
        return
    linear = _peft().tuners.lora.Linear
    readers = Counter(id(p) for one in module.modules() for p in one.parameters(recurse=False))
    # Subclasses have quantised base weights.
    layers: list[Any] = [one for one in module.modules() if type(one) is linear]
    for layer in layers:
        base = layer.get_base_layer()
        weights = list(base.parameters(recurse=False))
        exact = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in weights)
        has_room = base.bias is not None or not any(layer.lora_bias.values())
        if exact and has_room and all(readers[id(p)] == 1 for p in weights):
            layer.merge()


def _adapter_weights(model: PreTrainedModel, path: str) -> dict[str, torch.Tensor]:
    """Return the adapter's weights, keyed by name in the model; raise if the adapter belongs to a different model."""
    saved = load_file(Path(path) / "adapter_model.safetensors")
    weights = {name.removeprefix("base_model.model."): weight for name, weight in saved.items()}
    # Exclude embeddings, for which peft would look up the adapter's base model on the hub.
    there = _peft().get_peft_model_state_dict(model, save_embedding_layers=False)
    strange = sorted(name for name in weights.keys() ^ there.keys() if "lora_" in name)
    if strange:
        raise ConfigError(
            f"the adapter in {path} does not match its base model: only one of them has {', '.join(strange[:3])}"
        )
    return weights


def _is_model_folder(name: object) -> bool:
    try:
        return bool(name) and (Path(str(name)) / "config.json").is_file()
    except OSError:  # no file can have this name
        return False


def name_base(folder: Path) -> None:
    """In a saved adapter, replace the cache folder of a dequantised base model with the model's name or GGUF file."""
    path = folder / ADAPTER_CONFIG
    settings = read_object(path, SETTINGS)
    if (name := name_of(settings["base_model_name_or_path"])) is not None:
        write_atomically(path, json.dumps({**settings, "base_model_name_or_path": name}, indent=2))


def _widen_adapters(model: PreTrainedModel) -> None:
    """Cast adapters to float32: half precision, which 4-bit models also use for adapters, loses small updates."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def save_base(model: PreTrainedModel, folder: Path) -> None:
    """Save the frozen base weights of a model with an adapter as a model folder."""
    weights = {
        name.replace(".base_layer.", ".").replace(".original_module.", "."): tensor
        for name, tensor in weights_of(model).items()
        if ".lora_" not in name and ".modules_to_save." not in name
    }
    model._hf_peft_config_loaded = False  # otherwise, save_pretrained would write the adapter
    try:
        # In the "original" format, names would get the adapter's prefix after an adapter has been loaded.
        model.save_pretrained(folder, state_dict=weights, save_original_format=False)
    finally:
        model._hf_peft_config_loaded = True


def _is_listlike(value: Any) -> bool:
    return not isinstance(value, str | Mapping) and hasattr(value, "__iter__")


def _peft() -> Any:
    with importing("peft", "lora"):
        import peft
    return peft
