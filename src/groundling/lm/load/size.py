"""Determine a model's size from the headers of its files, without loading it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from groundling.lm.load.model import auto_class, load_config
from groundling.lm.load.model_files import Source, adapter_base, check_model_files, resolve


@dataclass(frozen=True)
class ModelSize:
    """A model's size and whether it is trained, determined before it is loaded."""

    parameters: int
    is_trained: bool = True
    """False if the weights look freshly initialised."""
    has_adapter: bool = False


def size_of(source: Source) -> ModelSize:
    """Return a model's size; raise `GroundlingError` if the model cannot be found."""
    path = resolve(source.path)
    if (base := adapter_base(path)) is not None:
        return ModelSize(size_of(Source(base, source.revision, source.trust_remote_code)).parameters, True, True)
    check_model_files(path)
    # A run's checkpoint also contains files for the optimizer and the heads.
    if files := sorted(Path(path).glob("model*.safetensors")) or sorted(Path(path).glob("*.safetensors")):
        try:
            return _size_of_files(files)
        except SafetensorError:
            pass  # reported when the model is loaded
    config = load_config(Source(path, source.revision, source.trust_remote_code))
    with torch.device("meta"):
        model = auto_class(config).from_config(config, **source.options)
    return ModelSize(model.num_parameters())


def _size_of_files(files: Sequence[Path]) -> ModelSize:
    parameters, constant = 0, list[bool]()
    for file in files:
        with safe_open(file, "pt") as weights:
            shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
            parameters += sum(map(math.prod, shapes.values()))
            # Training changes the scales of normalisation layers, which are all initialised to 1 or all to 0.
            scales = [name for name, shape in shapes.items() if len(shape) == 1 and name.endswith("weight")]
            constant += [weights.get_tensor(name).unique().numel() == 1 for name in scales]
    return ModelSize(parameters, not constant or not all(constant))
