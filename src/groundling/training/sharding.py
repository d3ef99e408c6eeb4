"""Shard weights, gradients and optimizer states of language models over the processes of a run (FSDP2)."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel

from groundling.config.schema import ModelConfig
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies.policy import Policy
from groundling.policies.token import TokenPolicy
from groundling.runtime.processes import Processes


def shard(model: ModelConfig, algorithm: str, policy: Policy, processes: Processes) -> Shards:
    """Shard the layers of a policy over the processes of a run, before its optimizer is created."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(f"model.fsdp=true needs a newer PyTorch than {torch.__version__}: install 2.13")
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(
            f"model.fsdp=true is for policies that write (policy.id=token), and {type(policy).__name__} chooses actions"
        )
    if algorithm == "trpo":
        raise ConfigError("model.fsdp=true: trpo takes second derivatives, which sharded layers do not give")
    for name, value in {"load_in_4bit": False, "compile": False, "device_map": None}.items():
        if (given := getattr(model, name)) != value:
            raise ConfigError(f"model.fsdp=true excludes model.{name}={given}: leave one of them out")
    for lm in policy.language_models:
        if turns := lm.backbone.layers.switches:  # processes would meet at the layers unequally often
            raise ConfigError(
                f"model.fsdp=true: this model (longrope) encodes positions differently beyond {turns[0]} tokens, so "
                "texts of both lengths take two passes, for which the other processes would wait: set "
                "model.fsdp=false, or use another model"
            )
    return Shards(policy, processes)


class Shards:
    """The sharded layers of a policy's language models (PyTorch's `fully_shard`; ZeRO, arXiv 1910.02054).
    While the policy learns, a layer's weights are gathered only while it computes, and gradients and optimizer states
    stay sharded. At all other times the weights are whole, because the processes write texts of different lengths, and
    the main process measures and saves alone. Parameters outside the layers (embeddings, heads, …) are not sharded.
    """

    def __init__(self, policy: TokenPolicy, processes: Processes) -> None:
        mesh = init_device_mesh(policy.device.type, (processes.size,))
        # PyTorch keeps meshes for ever, and a mesh keeps its process group, which must be freed at exit (see
        # `Processes.join`). The registry is private: without one there is nothing to clear.
        atexit.register(getattr(mesh, "_pg_registry", {}).clear)
        self._layers: list[FSDPModule] = []
        self._used: set[FSDPModule] = set()
        for lm in policy.language_models:
            self._shard(lm, mesh)
        for layer in self._layers:
            # The losses of all processes add up to the minibatch's mean, so gradients are summed.
            layer.set_force_sum_reduction_for_comms(True)
            layer.set_gradient_divide_factor(1.0)

    def _shard(self, lm: LanguageModel, mesh: DeviceMesh) -> None:
        layers = _layers_of(lm.model)
        inside = {p for layer in layers for p in layer.parameters()}
        outside = {p for p in lm.model.parameters() if p not in inside}
        self._layers += [fully_shard(layer, mesh=mesh) for layer in layers]
        # The stacks, too, so that the next layer's weights are fetched while a layer computes.
        for stack in [lm.model.get_decoder(), *([lm.model.get_encoder()] if lm.is_encoder_decoder else [])]:
            fully_shard(stack, mesh=mesh, ignored_params=outside)
            stack.register_forward_pre_hook(lambda stack, _: self._used.add(stack))

    @contextmanager
    def sharded(self) -> Iterator[None]:
        """Keep the weights sharded during a block in which all processes run the layers in step."""
        for stack in self._used:
            # A stack prefetches in the order of its last pass, which the main process may have run alone.
            stack.reset_iter_state()
        self._used.clear()
        for layer in self._layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()
        with warnings.catch_warnings():
            # A view must not be written in place; nothing here does.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
        self.gather()

    def gather(self) -> None:
        """Make the weights whole until the next `sharded` block."""
        for layer in self._layers:
            layer.set_reshard_after_forward(False)
            layer.unshard()


def _layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """Return the blocks that Transformers keeps on one device; they must not share weights with anything else."""
    kinds = set(model._no_split_modules or ())
    layers = {name: module for name, module in model.named_modules() if type(module).__name__ in kinds}
    places: dict[nn.Parameter, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        within = next((layer for layer in layers if name.startswith(f"{layer}.")), "")
        places.setdefault(parameter, set()).add(within)
    if not layers or any(len(holders) > 1 for holders in places.values()):
        problem = "its layers share weights" if layers else "Transformers does not name its layers"
        raise ConfigError(f"model.fsdp=true cannot shard {type(model).__name__}: {problem}; leave model.fsdp out")
    return list(layers.values())
