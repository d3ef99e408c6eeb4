"""Optimizer states in checkpoints: the moments of each parameter, and settings that the optimizer itself changes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from groundling.errors import RunError
from groundling.io.documents import parse_json
from groundling.runtime.processes import in_parts

_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum"}
"""Moments of PyTorch's optimizers that have the shape of their parameter; Adafactor's are smaller."""


def optimizer_tensors(optimizer: torch.optim.Optimizer, keep: bool = True) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors, named ``<parameter index>.<name>``; empty where ``keep`` is False.
    All processes must call it, because sharded tensors are gathered. Raises `RunError` if the state has other values
    than tensors, or entries of no parameter.
    """
    refused = f"the optimizer {type(optimizer).__name__} cannot be saved in a checkpoint"
    tensors = {}
    for index, entry in optimizer.state_dict()["state"].items():
        if not isinstance(index, int):
            raise RunError(
                f"{refused}: its state is also of {index!r:.80}, expected of parameters alone; keep that in their "
                "groups, or use an optimizer such as torch.optim.AdamW"
            )
        for name, value in entry.items():
            if not isinstance(value, torch.Tensor):
                raise RunError(
                    f"{refused}: its {name} is of type {type(value).__name__}, expected a tensor; use an optimizer "
                    "such as torch.optim.AdamW"
                )
            whole = value.full_tensor().cpu() if in_parts(value) else value  # type: ignore[attr-defined]
            if keep:
                tensors[f"{index}.{name}"] = whole
    return tensors


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return a copy of the settings of each parameter group, with lists in place of tensors."""
    return [
        {name: _plain(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


def changed_settings(optimizer: torch.optim.Optimizer, initial: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings of each group that the optimizer has changed since ``initial``, such as step counts.
    Raises `RunError` if it has other groups than initially, or a setting that JSON cannot hold.
    """
    refused = f"the optimizer {type(optimizer).__name__} cannot be saved in a checkpoint"
    now = settings_of(optimizer)
    if len(now) != len(initial):
        raise RunError(
            f"{refused}: it was created with {len(initial)} parameter groups and has {len(now)}; create all of them in "
            "the algorithm's setup"
        )
    changed = [
        {key: value for key, value in group.items() if key not in before or value != before[key]}
        for group, before in zip(now, initial, strict=True)
    ]
    for group, values, before in zip(optimizer.param_groups, changed, initial, strict=True):
        for key, value in values.items():
            # A tensor can be restored only in the place of a tensor.
            if not _is_json(value if key in before else group[key]):
                raise RunError(
                    f"{refused}: {key} of a parameter group is of type {type(group[key]).__name__}, expected a number, "
                    "a text or a list of them; set it when the optimizer is created, or keep it in the algorithm's "
                    "state_dict"
                )
    return changed


def save_optimizer(tensors: dict[str, torch.Tensor], settings: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write `optimizer_tensors` and `changed_settings`."""
    moments = dict[str, list[str]]()
    for key in sorted(tensors):
        index, _, name = key.partition(".")
        moments.setdefault(index, []).append(name)
    # One entry, because safetensors writes several in any order: equal states give equal files.
    written = json.dumps({"moments": moments, "settings": settings})
    save_file(tensors, path, metadata={"optimizer": written})


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Read what `save_optimizer` wrote into an optimizer of the same configuration; `ValueError` if of another."""
    with safe_open(path, framework="pt") as file:
        written = parse_json((file.metadata() or {})["optimizer"], str(path))
    parameters = {str(i): p for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    is_pytorch = type(optimizer).__module__.startswith("torch.optim.")
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(path).items():
        index, _, name = key.partition(".")
        if index not in parameters:
            raise ValueError(f"{key!r} belongs to none of the {len(parameters)} parameters")
        expected = parameters[index].shape if name in _MOMENTS else torch.Size() if name == "step" else None
        if is_pytorch and expected is not None and tensor.shape != expected:
            raise ValueError(f"{key} has the shape {tuple(tensor.shape)}, expected {tuple(expected)}")
        state.setdefault(index, {})[name] = _part(tensor, parameters[index])
    for index in sorted(state.keys() | written["moments"].keys()):
        found, wanted = sorted(state.get(index, ())), written["moments"].get(index, [])
        if found != wanted:
            raise ValueError(f"parameter {index} has {found}, expected {wanted}")
    groups = optimizer.state_dict()["param_groups"]
    if len(written["settings"]) != len(groups):
        raise ValueError(f"{len(written['settings'])} parameter groups, expected {len(groups)}")
    for group, changed in zip(groups, written["settings"], strict=True):
        for name, value in changed.items():
            try:
                group[name] = _restored(value, group[name]) if name in group else value
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from error
    optimizer.load_state_dict({"state": {int(i): s for i, s in state.items()}, "param_groups": groups})


def _plain(value: Any) -> Any:
    """Copy a setting as JSON can hold it; the optimizer may change the original in place."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _is_json(value: Any) -> bool:
    """Return True if a value is the same after it has been written as JSON and read."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _restored(value: Any, present: Any) -> Any:
    """Convert a setting from a checkpoint to the type of the present value, or raise `ValueError`."""
    if isinstance(present, Mapping) and isinstance(value, Mapping):
        return {key: _restored(item, present[key]) if key in present else item for key, item in value.items()}
    if isinstance(present, torch.Tensor):
        restored = torch.tensor(value, dtype=present.dtype, device=present.device)
        if restored.shape != present.shape:
            raise ValueError(f"shape {tuple(restored.shape)}, expected {tuple(present.shape)}")
        return restored
    if isinstance(present, tuple | list):
        restored_items = [_restored(item, one) for item, one in zip(value, present, strict=True)]
        return type(present)(restored_items)
    if isinstance(present, int | float) and not isinstance(value, int | float):
        raise ValueError(f"{value!r:.80}, expected a number such as {present}")
    return value


def _part(tensor: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return this process's part of a tensor if its parameter is sharded."""
    if not in_parts(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
