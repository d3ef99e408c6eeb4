"""Save models and tokenizers that are passed as Python objects, so that a config can refer to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from groundling.errors import ConfigError
from groundling.io.files import locked, new_folder, output_lock
from groundling.lm.load.model_files import first_line, quietly

if TYPE_CHECKING:
    from collections.abc import Mapping


def save_model(model: Any, tokenizer: Any, folder: Path) -> Mapping[str, str]:
    """Save a model and its tokenizer, if they are objects, in ``folder``, unless it already contains them.

    Args:
        model: A path, a hub id, a Transformers model, or None for the config's own model.
        tokenizer: A path, a hub id, a Transformers tokenizer, or None for the model's own tokenizer.

    Returns:
        The settings of the config's ``model`` section that load them.

    Raises:
        ConfigError: An object cannot be saved, or the folder contains a different model.
    """
    has_model, has_tokenizer = is_object(model), is_object(tokenizer)
    settings = {} if model is None else {"model.path": str(folder if has_model else model)}
    if tokenizer is not None and not (has_model and has_tokenizer):
        settings["model.tokenizer"] = str(folder if has_tokenizer else tokenizer)
    if has_model:
        _check_model(model, tokenizer)
    if has_tokenizer and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(
            f"tokenizer must be a folder, a hub id or a Transformers tokenizer, got a {type(tokenizer).__name__}"
        )
    if not (has_model or has_tokenizer):
        return settings
    with locked(output_lock(folder), f"is saving a model in {folder}", wait=True):  # all processes of a run get here
        if folder.exists() and any(folder.iterdir()):
            if has_model and not _holds(folder, model):
                raise ConfigError(
                    f"{folder} contains weights that differ from the model object's: pass model={str(folder)!r} to "
                    "resume, or set run_dir to a new folder"
                )
            return settings
        try:
            with new_folder(folder) as partial, quietly():
                for one in filter(is_object, (model, tokenizer)):
                    one.save_pretrained(partial)
        except (ValueError, RuntimeError) as error:  # for example, because generation settings are invalid
            raise ConfigError(f"the model cannot be saved in {folder}: {first_line(error)}") from error
    return settings


def is_object(given: Any) -> bool:
    """Return True for anything but a path, a hub id or None."""
    return given is not None and not isinstance(given, str | Path)


def _check_model(model: Any, tokenizer: Any) -> None:
    name = type(model).__name__
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError(
            f"the {name} has an adapter: pass its base model with overrides=['model.lora={{r: 16}}'] to train a new "
            "one, or pass model.merge_and_unload()"
        )
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"model must be a folder, a hub id or a Transformers model, got a {name}")
    if not type(model).__module__.startswith("transformers."):
        raise ConfigError(
            f"{name} is not a Transformers class, so it cannot be loaded again without its code: save it as a model "
            "with remote code, and pass model=FOLDER with overrides=['model.trust_remote_code=true']"
        )
    with torch.device("meta"):  # some types have constant weights, such as Marian's sinusoidal positions
        usual = {key for key, one in type(model)(model.config).named_parameters() if not one.requires_grad}
    if frozen := sum(not one.requires_grad and key not in usual for key, one in model.named_parameters()):
        raise ConfigError(
            f"{frozen} weights of the {name} are frozen, which is not saved with a model: call model.requires_grad_() "
            "to train them all, or train adapters (overrides=['model.lora={r: 16}'])"
        )
    if tokenizer is None:
        known = model.name_or_path or "FOLDER"
        raise ConfigError(
            f"a model object needs its tokenizer: pass tokenizer=AutoTokenizer.from_pretrained({known!r}), or "
            f"tokenizer={known!r}"
        )


def _holds(folder: Path, model: PreTrainedModel) -> bool:
    """Return True if a folder contains a model of the same type with equal weights."""
    config = folder / "config.json"
    if not config.exists() or json.loads(config.read_bytes()).get("model_type") != model.config.model_type:
        return False
    weights = model.state_dict()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as saved:
            names = [name for name in saved.keys() if name in weights]  # noqa: SIM118 (not a mapping)
            if not all(torch.equal(saved.get_tensor(name), weights[name].cpu()) for name in names):
                return False
    return True
