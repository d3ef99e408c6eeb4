"""Files of a policy's weights beside its language model's."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from groundling.errors import GroundlingError


def read_into(weights: dict[str, Tensor], file: Path) -> None:
    """Copy into ``weights`` those of a file that `save_file` wrote of the same ones.

    Raises:
        GroundlingError: the file has others.
    """
    saved = load_file(file)
    if saved.keys() != weights.keys():
        odd = sorted(saved.keys() ^ weights.keys())
        raise GroundlingError(
            f"{file} is not of this policy: {odd[0]} is in one of them only; check policy.args"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])
