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
