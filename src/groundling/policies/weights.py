"""Files of a policy's weights beside its language model's."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from groundling.errors import ConfigError


def read_into(weights: dict[str, Tensor], file: Path) -> None:
    """Copy into ``weights`` those of a file that `save_file` wrote of the same ones.

    Raises:
        ConfigError: the file has others, or of other shapes.
    """
    try:
        saved = load_file(file)
    except (SafetensorError, FileNotFoundError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): bring back the checkpoint's own") from error
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
    """Read a finite float32 vector ``name`` of any length from a file that `save_file` wrote.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    try:
        vector: Tensor = load_file(file)[name]
    except (SafetensorError, FileNotFoundError, KeyError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): bring back the checkpoint's own") from error
    if vector.ndim != 1 or vector.dtype != torch.float32 or not vector.isfinite().all():
        raise ConfigError(
            f"{file} is damaged: {name} is no finite float32 vector; bring back the checkpoint's own"
        )
    return vector
