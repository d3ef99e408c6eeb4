"""Reading a policy's weight files."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from groundling.errors import ConfigError


def read_into(weights: dict[str, Tensor], file: Path) -> None:
    """Copy a safetensors file's tensors into ``weights``; raise `ConfigError` for other names or shapes."""
    saved = _load(file)
    if saved.keys() != weights.keys():
        odd = sorted(saved.keys() ^ weights.keys())
        raise ConfigError(f"{file} is not of this policy: {odd[0]} is in one of them only; check policy.args")
    for name, weight in weights.items():
        if saved[name].shape != weight.shape:
            raise ConfigError(
                f"{file} is not of this policy: {name} has the shape {tuple(saved[name].shape)} there, and "
                f"{tuple(weight.shape)} here; check policy.args, and that there are as many actions as in training"
            )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])


def read_vector(file: Path, name: str) -> Tensor:
    """Return a finite float32 vector of any length from a safetensors file; raise `ConfigError` if there is none."""
    vector = _load(file).get(name)
    if vector is None or vector.ndim != 1 or vector.dtype != torch.float32 or not vector.isfinite().all():
        raise ConfigError(f"{file} is damaged: {name} is no finite float32 vector; bring back the checkpoint's own")
    return vector


def _load(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, FileNotFoundError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): bring back the checkpoint's own") from error
