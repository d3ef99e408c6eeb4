"""What checkpoints keep of an optimizer: of each parameter its moments, and what its groups count."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from groundling.errors import RunError
from groundling.io.documents import parse_json
from groundling.runtime.processes import in_parts

_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum"}
"""Of PyTorch's optimizers: one number for each of a parameter's. What Adafactor keeps, say, is smaller."""
_OF_ADAM = {"step", "exp_avg", "exp_avg_sq"}
"""Of each parameter; with amsgrad one more."""


def optimizer_tensors(optimizer: torch.optim.Optimizer, kept: bool = True) -> dict[str, torch.Tensor]:
    """The optimizer's tensors, named ``<parameter index>.<name>``.

    Of what is in parts all processes have to ask, though only one keeps the answer; of the others it is empty.

    Raises:
        RunError: it keeps something that is no tensor, or is of no parameter.
    """
    tensors = {}
    for index, entry in optimizer.state_dict()["state"].items():
        if not isinstance(index, int):
            raise RunError(
                f"the optimizer {type(optimizer).__name__} cannot be kept in a checkpoint: its state is also of "
                f"{index!r:.80}, expected of parameters alone; keep that in their groups, or take one such as "
                "torch.optim.AdamW"
            )
        for name, value in entry.items():
            if not isinstance(value, torch.Tensor):
                raise RunError(
                    f"the optimizer {type(optimizer).__name__} cannot be kept in a checkpoint: its {name} is no "
                    f"tensor, but of type {type(value).__name__}; take one such as torch.optim.AdamW"
                )
            whole = _whole(value)
            if kept:
                tensors[f"{index}.{name}"] = whole
    return tensors


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What is set of each of the optimizer's groups, in plain values: what it was made with, and what it counts."""
    return [
        {name: _plain(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def changed_settings(
    optimizer: torch.optim.Optimizer, made: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Of each group what an optimizer has changed since it was made, which no configuration gives it again.

    Args:
        optimizer: As it is now.
        made: What `settings_of` gave when it was made.

    Raises:
        RunError: it has other groups than then, or one has a setting that a checkpoint cannot hold.
    """
    name, now = type(optimizer).__name__, settings_of(optimizer)
    if len(now) != len(made):
        raise RunError(
            f"the optimizer {name} cannot be kept in a checkpoint: it was made with {len(made)} groups of parameters "
            f"and has {len(now)}, expected as many; make all of them in the algorithm's setup"
        )
    changed = [
        {key: value for key, value in group.items() if key not in before or value != before[key]}
        for group, before in zip(now, made, strict=True)
    ]
    for number, group in enumerate(changed):
        for key, value in group.items():
            present = optimizer.param_groups[number][key]
            is_new = (
                key not in made[number]
            )  # of one that was there, its form says what a checkpoint's numbers are
            if not _is_plain(present if is_new else value):
                wanted = (
                    "a number, a text or a list of those"
                    if is_new
                    else "numbers, texts, tensors or lists of those"
                )
                raise RunError(
                    f"the optimizer {name} cannot be kept in a checkpoint: {key} of a group of its parameters, "
                    f"which has changed since it was made, is of type {type(present).__name__}, expected {wanted}; "
                    "give it one of these types, set it when the optimizer is made, or put it into the algorithm's "
                    "state_dict"
                )
    return changed


def save_optimizer(
    tensors: dict[str, torch.Tensor], settings: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Write `optimizer_tensors`, which of them each parameter has, and `changed_settings`."""
    moments = dict[str, list[str]]()
    for key in sorted(tensors):
        index, _, name = key.partition(".")
        moments.setdefault(index, []).append(name)
    # In one entry: safetensors writes several in any order, and equal states are to be equal files.
    written = json.dumps({"moments": moments, "settings": settings})
    save_file(tensors, path, metadata={"optimizer": written})


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Read what `save_optimizer` wrote into an optimizer made from the same configuration.

    Raises:
        ValueError: it is that of another one.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get("optimizer")
    written = None if text is None else parse_json(text, str(path))  # older checkpoints hold tensors alone
    groups = optimizer.param_groups
    places = [(number, p) for number, group in enumerate(groups) for p in group["params"]]
    # In another's optimizer a moment of such a name may be smaller than its parameter.
    is_known = type(optimizer).__module__.startswith("torch.optim.")
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(path).items():
        index, _, name = key.partition(".")
        if not re.fullmatch(r"0|[1-9][0-9]*", index) or int(index) >= len(places):
            raise ValueError(f"{key!r} is of no parameter: there are {len(places)}")
        _, parameter = places[int(index)]
        expected = parameter.shape if name in _MOMENTS else torch.Size() if name == "step" else None
        if is_known and expected is not None and tensor.shape != expected:
            raise ValueError(f"{key} has the shape {tuple(tensor.shape)}, expected {tuple(expected)}")
        state.setdefault(int(index), {})[name] = _part(tensor, parameter)
    settings = [{} for _ in groups] if written is None else written["settings"]
    if len(settings) != len(groups):
        raise ValueError(f"it has {len(settings)} groups of parameters, expected {len(groups)}")
    taken_up = [
        group
        | {
            name: _like(name, value, group[name]) if name in group else value
            for name, value in changed.items()
        }
        for group, changed in zip(optimizer.state_dict()["param_groups"], settings, strict=True)
    ]
    is_adam = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
    adams = [bool(group["amsgrad"]) for group in taken_up] if is_adam else None
    _check_moments(places, state, adams, None if written is None else written["moments"])
    optimizer.load_state_dict({"state": state, "param_groups": taken_up})


def _check_moments(
    places: Sequence[tuple[int, torch.Tensor]],
    state: Mapping[int, Mapping[str, Any]],
    adams: Sequence[bool] | None,
    written: Mapping[str, Sequence[str]] | None,
) -> None:
    """Raise `ValueError` if a parameter has not the moments that the optimizer keeps of it.

    Args:
        places: By index of a parameter its group's number, and itself.
        state: The moments that there are, by index.
        adams: Of PyTorch's own Adam and AdamW, whose moments are known: by group whether it is amsgrad.
        written: The names that there were when they were written, as the checkpoint says; None: it says nothing.
    """
    names = None if written is None else {int(index): set(moments) for index, moments in written.items()}
    like = dict[tuple[int, int], set[str]]()
    for index in sorted(state.keys() | (names or {}).keys()):
        if not 0 <= index < len(places):
            raise ValueError(f"there is no parameter {index}: there are {len(places)}")
        number, parameter = places[index]
        moments = set(state.get(index, ()))
        if adams is not None:
            wanted = _OF_ADAM | ({"max_exp_avg_sq"} if adams[number] else set())
        elif names is not None:
            wanted = names.get(index, set())
        else:  # those of the group's first parameter of as many dimensions, as of Adafactor
            wanted = like.setdefault((number, parameter.ndim), moments)
        if moments != wanted:
            raise ValueError(f"parameter {index} has {sorted(moments)}, expected {sorted(wanted)}")


def _plain(value: Any) -> Any:
    """A setting as JSON has it, if it can; no part of the optimizer's, which may change it in place."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | bool | int | float | None)


def _like(name: str, value: Any, present: Any) -> Any:
    """A setting out of a checkpoint, in the form of the one that it takes the place of.

    Raises:
        ValueError: it is no setting, or of another kind, as a text in a number's place.
    """
    here = _plain(present)
    alike = _is_alike(value, here) and (not isinstance(present, tuple) or len(value) == len(present))
    if (
        name == "params"
        or not alike
        or (isinstance(present, torch.Tensor) and np.shape(value) != present.shape)
    ):
        raise ValueError(f"{name}={value!r:.80} is no setting of this optimizer's: it has {here!r:.80}")
    if isinstance(present, torch.Tensor):
        return torch.tensor(value, dtype=present.dtype, device=present.device)
    if isinstance(present, Mapping):
        return {
            key: _like(key, item, present[key]) if key in present else item for key, item in value.items()
        }
    return tuple(value) if isinstance(present, tuple) else value


def _is_alike(value: Any, here: Any) -> bool:
    """Whether a plain value may stand in the place of another; in the place of none, what is no text may."""
    if here is None:
        return not isinstance(value, str)
    if isinstance(here, list):
        return isinstance(value, list) and all(map(_is_alike, value, here))
    if type(here) in (int, float):
        return type(value) in (int, float)
    return type(value) is type(here)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor().cpu() if in_parts(value) else value  # type: ignore[attr-defined]


def _part(tensor: torch.Tensor, parameter: Any) -> torch.Tensor:
    """What this process has of a tensor, if it has a part of the parameter that it belongs to."""
    if not in_parts(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
