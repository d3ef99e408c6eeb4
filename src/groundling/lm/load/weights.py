"""Changes to a loaded model, and its weights as a state dict."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from transformers import PretrainedConfig

from groundling.errors import ConfigError, pass_out_of_memory
from groundling.lm.load.sources import first_line

if TYPE_CHECKING:  # a second of imports, which commands that load no model do without
    from transformers import PreTrainedModel

_ALIGNMENT = 64  # Bytes that PyTorch's allocator aligns tensors to on CPUs


def align(weights: Iterable[torch.nn.Parameter]) -> None:
    """Move weights in the CPU's memory to addresses aligned as by PyTorch's allocator."""
    # safetensors maps a file's weights at any address. MKL's matrix products round differently by the addresses of
    # their arguments, and a resumed run must compute the same as an uninterrupted one.
    for weight in weights:
        if weight.device.type == "cpu" and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def switch_dropout_off(model: PreTrainedModel) -> None:
    """Set every dropout of a model to 0, in its modules and in its config."""
    # PPO compares probabilities of one policy before and after an update: with dropout the ratio is noise, and
    # gradient checkpointing needs the training mode, in which dropout would be on.
    _zero_dropout(model.config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        _zero_dropout(module)


def _zero_dropout(holder: object) -> None:
    """Set numbers with "drop" in their name (layerdrop, `attn_pdrop`, ...) to 0, in nested configs too."""
    for key, value in vars(holder).items():
        if isinstance(value, PretrainedConfig):
            _zero_dropout(value)
        elif "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(holder, key, type(value)(0))  # some configs accept integers only


def fuse_activations(model: PreTrainedModel) -> None:
    """Compute GPT-2's approximation of GELU by one kernel instead of seven, in both passes; the same to rounding."""
    from transformers.activations import NewGELUActivation

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    with warnings.catch_warnings():
        # Renamed in Transformers 5.23; this is the name that 5.3 knows too.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@functools.cache
def check_compiler(device: str) -> None:
    """Compile one small function; raise `ConfigError` if `torch.compile` does not work."""
    try:
        torch.compile(torch.nn.functional.silu)(torch.ones(8, device=device))
    except Exception as error:
        pass_out_of_memory(error)
        raise ConfigError(
            f"model.compile=true, but torch.compile does not work here ({first_line(error)}): CPUs need a C++ "
            "compiler (g++) and Python's headers, GPUs Triton; or leave model.compile out"
        ) from error


def is_sharded(model: PreTrainedModel) -> bool:
    """Return True if a run's processes have parts of the layers (FSDP2)."""
    return any(hasattr(module, "unshard") for module in model.modules())


def weights_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the state dict; `state_dict` would reshard layers that have been gathered."""
    if not is_sharded(model):
        return model.state_dict()
    kept = {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in model.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)} | buffers
