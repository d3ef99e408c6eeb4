"""LoRA adapters: added to a frozen model, saved, and loaded onto the weights that they stand on."""

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

from groundling.errors import GroundlingError, pass_out_of_memory
from groundling.io.documents import SETTINGS, read_object
from groundling.io.files import write_atomically
from groundling.lm.load.gguf import name_of
from groundling.lm.load.loading import first_line, resolve, weights_of
from groundling.lm.load.model_files import check_model_files

if TYPE_CHECKING:  # a second of imports, which commands that load no model do without
    from transformers import PreTrainedModel

# Beside a saved adapter: the frozen weights it stands on, where they are not to be had from elsewhere.
BASE_FOLDER = "base"
_ADAPTER_CONFIG = "adapter_config.json"
_INITS = (True, False, "gaussian", "orthogonal")
"""Of `peft.LoraConfig`, what begins an adapter and leaves the weights under it as they are."""
_LORA = "lora_"
"""In the names of an adapter's matrices."""


def adapter_base(path: str) -> str | None:
    """Where the frozen weights of an adapter folder are; None if `path` is no adapter folder."""
    saved = Path(path) / _ADAPTER_CONFIG
    if not saved.exists():
        return None
    check_model_files(path)
    try:
        settings = read_object(saved, SETTINGS)
        base = settings["base_model_name_or_path"]
    except (ValueError, KeyError) as error:
        raise GroundlingError(f"{saved} cannot be read: {first_line(error)}") from error
    if settings.get("megatron_config"):  # with which peft imports the module that megatron_core names
        raise GroundlingError(f"{saved} would import a module (megatron_core): set its megatron_config to null")
    if (saved.parent / BASE_FOLDER).is_dir():
        return str(saved.parent / BASE_FOLDER)
    if not isinstance(base, str) or not base:
        raise GroundlingError(
            f"{saved} does not say which model the adapter belongs to (base_model_name_or_path is "
            f"{json.dumps(base):.80}): set it to a folder or a hub id, or put the model at "
            f"{saved.parent / BASE_FOLDER}"
        )
    try:
        return resolve(base)
    except GroundlingError as error:
        raise GroundlingError(
            f"the adapter in {path} belongs to the model {base}, which is not on this machine: put that folder, or "
            f"a link to it, at {saved.parent / BASE_FOLDER}"
        ) from error


def add_lora(model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
    """Freezes the model and adds trainable low-rank adapters (LoRA, arXiv 2106.09685).

    Args:
        model: Changed in place.
        settings: Keyword arguments of `peft.LoraConfig`; without `target_modules` peft knows those of common models.

    Raises:
        GroundlingError: peft is not installed, or a setting is wrong or does not go with learning from ratios to a
            reference.
    """
    lora_config = _peft().LoraConfig
    if settings.get("lora_dropout"):
        raise GroundlingError("lora_dropout must be 0: dropout would make the probability ratios of PPO random")
    if (init := settings.get("init_lora_weights", True)) not in _INITS:
        raise GroundlingError(
            f"init_lora_weights={init} cannot be used: it changes the weights under the adapter, so that the model "
            "without it is no reference, and they are changed again when it is loaded: choose true, false, gaussian or "
            "orthogonal"
        )
    if (bias := settings.get("bias", "none")) != "none":
        raise GroundlingError(
            f"bias={bias} cannot be used: trained biases stay in place when the adapter is switched off, so that "
            "the model without it is no reference: leave it out"
        )
    if tokens := settings.get("alora_invocation_tokens"):
        raise GroundlingError(
            f"alora_invocation_tokens={tokens} cannot be used: such an adapter acts after these tokens alone, of which "
            "the model would have to be told at each call: leave it out"
        )
    if indices := settings.get("trainable_token_indices"):
        raise GroundlingError(
            f"trainable_token_indices={indices} cannot be used: what some tokens' embeddings learn cannot be saved "
            "beside the model's: train all of them, with modules_to_save: [embed_tokens], say, or leave it out"
        )
    try:
        # Plain containers: settings may come from Hydra.
        plain = {key: list(value) if _is_listlike(value) else value for key, value in settings.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft then sets it right itself
            model.add_adapter(lora_config(**plain))
        _widen_adapters(model)
    except (TypeError, ValueError) as error:
        raise GroundlingError(f"these LoRA settings cannot be used: {first_line(error)}") from error


def load_adapter(model: PreTrainedModel, path: str, settings: Mapping[str, Any] | None) -> None:
    """Adds the adapter saved in `path`, trainable; `settings`, if given, must agree with it."""
    _peft()
    try:
        model.load_adapter(path, is_trainable=True)
        widened = _widen_adapters(model)
        weights, renamed = _adapter_weights(model, path)
        # What was rounded as it was loaded, or not found, is loaded again: Transformers does not find the magnitudes of
        # DoRA, which are saved by another name than they have.
        if widened or renamed or getattr(model.peft_config["default"], "use_dora", False):
            _peft().set_peft_model_state_dict(model, weights, "default")
    except GroundlingError:
        raise
    except Exception as error:
        pass_out_of_memory(error)
        raise GroundlingError(f"the adapter in {path} cannot be loaded: {first_line(error)}") from error
    adapter: Any = model.peft_config["default"]
    if getattr(adapter, "alora_invocation_tokens", None):
        raise GroundlingError(
            f"the adapter in {path} acts after some tokens alone (alora_invocation_tokens), which is not supported: "
            "name another one"
        )
    # Where peft looks, which a hub is not to be asked for. A folder that is here keeps its name, so that what a resumed
    # run saves is what it would have saved.
    if not _is_model_folder(adapter.base_model_name_or_path):
        adapter.base_model_name_or_path = model.name_or_path
    saved = adapter.to_dict()
    for key, value in (settings or {}).items():
        if value == "all-linear":  # which is saved as the layers that it stood for
            continue
        wanted = set(value) if _is_listlike(value) else value
        saved_value = set(saved[key]) if _is_listlike(saved.get(key)) else saved.get(key)
        if wanted != saved_value:
            raise GroundlingError(f"the adapter in {path} was made with {key}={saved_value}, not {wanted}")


def merge_adapters(module: nn.Module) -> None:
    """Adds what LoRA adapters have learnt to the weights under them, in place: acting then costs as if there were none.

    The same to rounding. The module is not to be trained or saved afterwards. A layer keeps its adapter beside it where
    the sum would be wrong or coarse: where others read the weights under it too (a tied embedding, or the policy under
    an adapter of its values), where the adapter has a bias and the layer none, or where products are not of float32, as
    on GPUs: there rounding could take away what an adapter has learnt.

    Args:
        module: Holds language models.
    """
    if not any(getattr(one, "_hf_peft_config_loaded", False) for one in module.modules()):
        return
    linear = _peft().tuners.lora.Linear
    readers = Counter(id(p) for one in module.modules() for p in one.parameters(recurse=False))
    # Classes derived from it have quantised weights under them.
    layers: list[Any] = [one for one in module.modules() if type(one) is linear]
    for layer in layers:
        base = layer.get_base_layer()
        weights = list(base.parameters(recurse=False))
        exact = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in weights)
        has_room = base.bias is not None or not any(layer.lora_bias.values())
        if exact and has_room and all(readers[id(p)] == 1 for p in weights):
            layer.merge()


def _adapter_weights(model: PreTrainedModel, path: str) -> tuple[dict[str, torch.Tensor], bool]:
    """The weights of the adapter saved in `path` by the names that they have in the model; whether that renames them.

    Layers of a whole vision-language model have longer names than those of its language model alone.

    Raises:
        GroundlingError: weights of the adapter are not the model's, or some of the model's are missing.
    """
    saved = load_file(Path(path) / "adapter_model.safetensors")
    weights = {name.removeprefix("base_model.model."): weight for name, weight in saved.items()}
    # Without embeddings, for which peft would ask a hub about the model that the adapter names.
    there = _peft().get_peft_model_state_dict(model, save_embedding_layers=False)
    wanted = {name for name in there if _LORA in name}
    shorter = {name.replace("language_model.", "", 1): weight for name, weight in weights.items()}
    for names in (weights, shorter):
        if {name for name in names if _LORA in name} == wanted:
            return names, names is shorter
    strange = sorted({name for name in weights if _LORA in name} ^ wanted)
    raise GroundlingError(
        f"the adapter in {path} is not one of the model that it names: {', '.join(strange[:3])} is in one of them alone"
    )


def _is_model_folder(name: object) -> bool:
    """Whether a name is that of a folder here which holds a model."""
    try:
        return bool(name) and (Path(str(name)) / "config.json").is_file()
    except OSError:  # no file can be called so
        return False


def name_base(folder: Path) -> None:
    """Have a saved adapter call a model that was dequantised into this machine's cache by its name, or its file."""
    path = folder / _ADAPTER_CONFIG
    settings = read_object(path, SETTINGS)
    if (name := name_of(settings["base_model_name_or_path"])) is not None:
        write_atomically(path, json.dumps({**settings, "base_model_name_or_path": name}, indent=2))


def _widen_adapters(model: PreTrainedModel) -> bool:
    """Keep adapters in float32: in half precision, as 4-bit models' adapters begin in, small updates are lost.

    Returns:
        Whether any was not.
    """
    narrow = [p for p in model.parameters() if p.requires_grad and p.dtype != torch.float32]
    for parameter in narrow:
        parameter.data = parameter.data.float()
    return bool(narrow)


def save_base(model: PreTrainedModel, folder: Path) -> None:
    """Saves the frozen weights under an adapter, without the adapter, as a model folder of its own."""
    weights = {
        name.replace(".base_layer.", ".").replace(".original_module.", "."): tensor
        for name, tensor in weights_of(model).items()
        if ".lora_" not in name and ".modules_to_save." not in name
    }
    model._hf_peft_config_loaded = False  # or save_pretrained would write the adapter instead
    try:
        # Not the "original" format: its names would get the prefix of the adapter once one has been loaded.
        model.save_pretrained(folder, state_dict=weights, save_original_format=False)
    finally:
        model._hf_peft_config_loaded = True


def _is_listlike(value: Any) -> bool:
    return not isinstance(value, str | Mapping) and hasattr(value, "__iter__")


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise GroundlingError("LoRA needs peft: pip install 'groundling[lora]'") from error
    return peft
