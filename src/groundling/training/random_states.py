"""States of random generators in checkpoints."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from groundling.io.documents import parse_json

_NUMPY_WORDS = 624  # Length of the state of NumPy's legacy generator, a Mersenne Twister


def save_random_states(generators: dict[str, torch.Generator], path: Path) -> None:
    """Write the states of ``generators`` and of the global generators of torch, CUDA, NumPy and Python."""
    tensors = {f"generator.{name}": g.get_state() for name, g in generators.items()}
    tensors["torch"] = torch.get_rng_state()
    for i, state in enumerate(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []):
        tensors[f"cuda.{i}"] = state
    _, keys, *rest = np.random.get_state()  # noqa: NPY002 - users' components may draw from it
    version, words, gauss = random.getstate()
    tensors["numpy"] = torch.from_numpy(np.array(keys, dtype=np.int64))
    tensors["python"] = torch.tensor(words, dtype=torch.int64)
    # One entry, because safetensors writes several in any order: equal states give equal files.
    save_file(tensors, path, metadata={"others": json.dumps({"numpy": rest, "python": [version, gauss]})})


def load_random_states(generators: dict[str, torch.Generator], path: Path) -> None:
    """Read the states that `save_random_states` wrote.
    NumPy does not check the position of its generator, so `ValueError` if it is out of bounds.
    """
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        others = parse_json((file.metadata() or {})["others"], str(path))
    for name, generator in generators.items():
        generator.set_state(tensors[f"generator.{name}"])
    torch.set_rng_state(tensors["torch"])
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{i}"], i)
    position = others["numpy"][0]
    if type(position) is not int or not 0 <= position <= _NUMPY_WORDS:
        raise ValueError(
            f"NumPy's generator is at position {position!r:.80} of its state, expected 0 to {_NUMPY_WORDS}"
        )
    np.random.set_state(("MT19937", tensors["numpy"].numpy().astype(np.uint32), *others["numpy"]))  # noqa: NPY002
    version, gauss = others["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
