"""Optimizer states in checkpoints: the moments of each parameter, and settings that the optimizer itself changes."""

from __future__ import annotations

import atexit
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import distribute_tensor
from transformers import PreTrainedModel

from groundling.algorithms.optimisation import settings_of
from groundling.config.schema import ModelConfig
from groundling.errors import ConfigError, RunError
from groundling.io.documents import parse_json
from groundling.policies.policy import Policy
from groundling.policies.token import TokenPolicy
from groundling.runtime.processes import Processes, in_parts


def optimizer_tensors(optimizer: torch.optim.Optimizer, keep: bool = True) -> dict[str, torch.Tensor]:
    """Return the state's tensors, keyed ``PARAMETER.NAME`` (empty without ``keep``); all processes must call this."""
    refused = f"the optimizer {type(optimizer).__name__} cannot be saved in a checkpoint, unlike torch.optim.AdamW"
    tensors = {}
    for index, entry in optimizer.state_dict()["state"].items():
        if not isinstance(index, int):
            raise RunError(f"{refused}: its state has an entry {index!r:.80} that belongs to no parameter")
        for name, value in entry.items():
            if not isinstance(value, torch.Tensor):
                raise RunError(f"{refused}: its {name} is of type {type(value).__name__}, expected a tensor")
            whole = value.full_tensor().cpu() if in_parts(value) else value  # type: ignore[attr-defined]
            if keep:
                tensors[f"{index}.{name}"] = whole
    return tensors


def changed_settings(optimizer: torch.optim.Optimizer, initial: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each group, the settings that the optimizer has changed since ``initial``, such as step counts."""
    refused = f"the optimizer {type(optimizer).__name__} cannot be saved in a checkpoint"
    now = settings_of(optimizer)
    if len(now) != len(initial):
        raise RunError(f"{refused}: it was created with {len(initial)} parameter groups and now has {len(now)}")
    changed = [
        {key: value for key, value in group.items() if key not in before or value != before[key]}
        for group, before in zip(now, initial, strict=True)
    ]
    for group, values, before in zip(optimizer.param_groups, changed, initial, strict=True):
        for key, value in values.items():
            # A tensor can be restored only if the new optimizer also has a tensor there.
            plain = value if key in before else group[key]
            try:
                is_kept = json.loads(json.dumps(plain)) == plain
            except (TypeError, ValueError):
                is_kept = False
            if not is_kept:
                raise RunError(
                    f"{refused}: {key} of a parameter group is of type {type(group[key]).__name__}, expected a "
                    "number, a string or a list of these; set it when creating the optimizer"
                )
    return changed


def save_optimizer(tensors: dict[str, torch.Tensor], settings: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the results of `optimizer_tensors` and `changed_settings` to a file."""
    moments = dict[str, list[str]]()
    for key in sorted(tensors):
        index, _, name = key.partition(".")
        moments.setdefault(index, []).append(name)
    # Use one entry: safetensors writes several in arbitrary order, but a state must always yield the same file.
    written = json.dumps({"moments": moments, "settings": settings})
    save_file(tensors, path, metadata={"optimizer": written})


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Load what `save_optimizer` wrote; raise `ValueError` if the optimizer's configuration differs."""
    with safe_open(path, framework="pt") as file:
        written = parse_json((file.metadata() or {})["optimizer"], str(path))
    parameters = {str(i): p for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(path).items():
        index, _, name = key.partition(".")
        if index not in parameters:
            raise ValueError(f"{key!r} belongs to none of the {len(parameters)} parameters")
        parameter: Any = parameters[index]
        if in_parts(parameter) and tensor.shape == parameter.shape:  # this process keeps its shard
            tensor = distribute_tensor(
                tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
            )
        state.setdefault(index, {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    if len(written["settings"]) != len(groups):
        raise ValueError(f"{len(written['settings'])} parameter groups, expected {len(groups)}")
    for group, changed in zip(groups, written["settings"], strict=True):
        for name, value in changed.items():
            group[name] = _restored(value, group[name]) if name in group else value
    optimizer.load_state_dict({"state": {int(i): s for i, s in state.items()}, "param_groups": groups})


def _restored(value: Any, present: Any) -> Any:
    """Convert a setting from a checkpoint to the type of the current value, or raise `ValueError`."""
    if isinstance(present, Mapping) and isinstance(value, Mapping):
        return {key: _restored(item, present[key]) if key in present else item for key, item in value.items()}
    if isinstance(present, torch.Tensor):
        restored = torch.tensor(value, dtype=present.dtype, device=present.device)
        if restored.shape != present.shape:
            raise ValueError(f"shape {tuple(restored.shape)}, expected {tuple(present.shape)}")
        return restored
    if isinstance(present, tuple | list):
        return type(present)(_restored(item, one) for item, one in zip(value, present, strict=True))
    return value


def shard(model: ModelConfig, algorithm: str, policy: Policy, processes: Processes) -> Shards:
    """Shard the layers of a policy across the processes of a run, before its optimizer is created."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(f"model.fsdp=true needs a newer PyTorch than {torch.__version__}: install 2.13")
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(f"model.fsdp=true needs a text-generating policy: {type(policy).__name__} chooses actions")
    if algorithm == "trpo":
        raise ConfigError("trpo needs second derivatives, which sharded layers do not support: remove model.fsdp")
    for name, value in {"load_in_4bit": False, "compile": False, "device_map": None}.items():
        if (given := getattr(model, name)) != value:
            raise ConfigError(f"model.fsdp=true cannot be combined with model.{name}={given}: remove one of them")
    return Shards(policy, processes)


class Shards:
    """The sharded layers of a policy's language models (PyTorch's `fully_shard`; ZeRO, arXiv 1910.02054).
    While the policy learns, a layer's weights are gathered only while it computes, and gradients and optimizer states
    stay sharded. At all other times, the weights are unsharded, because processes generate texts of different lengths,
    and only the main process evaluates and saves. Parameters outside the layers (embeddings, …) are never sharded.
    """

    def __init__(self, policy: TokenPolicy, processes: Processes) -> None:
        mesh = init_device_mesh(policy.device.type, (processes.size,))
        # PyTorch never frees meshes, and a mesh keeps its process group alive, which must be freed at exit (see
        # `Processes.join`). The registry is private; if it does not exist, there is nothing to clear.
        atexit.register(getattr(mesh, "_pg_registry", {}).clear)
        self._layers: list[FSDPModule] = []
        self._used: set[FSDPModule] = set()
        for lm in policy.language_models:
            layers = _layers_of(lm.model)
            inside = {p for layer in layers for p in layer.parameters()}
            outside = {p for p in lm.model.parameters() if p not in inside}
            self._layers += [fully_shard(layer, mesh=mesh) for layer in layers]
            # Also shard the encoder and decoder, so that the next layer's weights are fetched while a layer computes.
            for stack in [lm.model.get_decoder(), *([lm.model.get_encoder()] if lm.is_encoder_decoder else [])]:
                fully_shard(stack, mesh=mesh, ignored_params=outside)
                stack.register_forward_pre_hook(lambda stack, _: self._used.add(stack))
        for layer in self._layers:
            # The losses of all processes add up to the minibatch's mean, so gradients are summed.
            layer.set_force_sum_reduction_for_comms(True)
            layer.set_gradient_divide_factor(1.0)

    @contextmanager
    def sharded(self) -> Iterator[None]:
        """Keep the weights sharded during a block in which all processes run the layers in lockstep."""
        for stack in self._used:
            # A stack prefetches in the order of its last pass, which the main process may have run alone.
            stack.reset_iter_state()
        self._used.clear()
        for layer in self._layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()
        with warnings.catch_warnings():
            # The warning concerns modifying a view in place, which does not happen here.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
        self.gather()

    def gather(self) -> None:
        """Gather the full weights until the next `sharded` block."""
        for layer in self._layers:
            layer.set_reshard_after_forward(False)
            layer.unshard()


def _layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks that Transformers keeps on one device; they must not share weights with other modules."""
    kinds = set(model._no_split_modules or ())
    layers = {name: module for name, module in model.named_modules() if type(module).__name__ in kinds}
    places: dict[nn.Parameter, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        within = next((layer for layer in layers if name.startswith(f"{layer}.")), "")
        places.setdefault(parameter, set()).add(within)
    if not layers or any(len(holders) > 1 for holders in places.values()):
        problem = "its layers share weights" if layers else "Transformers does not list its layers"
        raise ConfigError(f"model.fsdp=true cannot shard {type(model).__name__}: {problem}; remove model.fsdp")
    return list(layers.values())
