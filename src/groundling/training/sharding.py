"""Weights, gradients and moments of large language models in parts, one on each process of a run (FSDP)."""

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
    """Deal the layers of a run's policy out over its processes.

    Args:
        model: The config's section.
        algorithm: The id of what learns.
        policy: Of the run.
        processes: Over which.

    Raises:
        ConfigError: they cannot be.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(f"model.fsdp=true needs a newer PyTorch than {torch.__version__}: install 2.13")
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(
            f"model.fsdp=true is for policies that write (policy.id=token), and {type(policy).__name__} chooses actions"
        )
    if algorithm == "trpo":
        raise ConfigError(
            "model.fsdp=true: trpo takes gradients of gradients, which sharded layers do not give"
        )
    for name, value in {"load_in_4bit": False, "compile": False, "device_map": None}.items():
        if (given := getattr(model, name)) != value:
            raise ConfigError(f"model.fsdp=true does not go with model.{name}={given}: leave one of them")
    for lm in policy.language_models:
        if turns := lm.backbone.layers.turns:  # processes would meet at the layers unequally often
            raise ConfigError(
                f"model.fsdp=true: beyond {turns[0]} tokens this model (longrope) encodes positions differently, so "
                "that texts on both sides take two passes, for which the other processes would wait: set "
                "model.fsdp=false, or take another model"
            )
    return Shards(policy, processes)


class Shards:
    """The layers of a policy's language models, dealt out over the processes (PyTorch's `fully_shard`; ZeRO, arXiv
    1910.02054).

    While the policy learns, a layer's weights are whole only as long as it computes, its gradients are summed and dealt
    out as soon as they are there, and the optimizer's moments are of this process's part. At all other times the
    weights are whole: the processes write texts of different lengths, and the main one measures and saves alone, so
    that they could not meet at each layer. What is in no layer (embeddings, the last norm, heads) is whole always.

    Args:
        policy: One that writes; changed in place, before its optimizer is made.
        processes: The processes.

    Raises:
        ConfigError: Transformers does not tell a model's layers, or they share weights.
    """

    def __init__(self, policy: TokenPolicy, processes: Processes) -> None:
        mesh = init_device_mesh(policy.device.type, (processes.size,))
        # PyTorch remembers meshes for good, and a mesh its group, which ends when nothing holds it (`Processes.join`).
        # Its list of them is PyTorch's own affair: one that has none is left alone.
        atexit.register(getattr(mesh, "_pg_registry", {}).clear)
        self._layers: list[FSDPModule] = []
        self._used: set[FSDPModule] = set()
        for lm in policy.language_models:
            self._shard(lm, mesh)
        for layer in self._layers:
            # The losses of all processes add up to the minibatch's mean: gradients are summed.
            layer.set_force_sum_reduction_for_comms(True)
            layer.set_gradient_divide_factor(1.0)

    def _shard(self, lm: LanguageModel, mesh: DeviceMesh) -> None:
        layers = _layers_of(lm.model)
        inside = {p for layer in layers for p in layer.parameters()}
        outside = {p for p in lm.model.parameters() if p not in inside}
        self._layers += [fully_shard(layer, mesh=mesh) for layer in layers]
        # The stacks of layers, so that the next layer's weights come while this one computes.
        stacks = [lm.model.get_decoder(), *([lm.model.get_encoder()] if lm.is_encoder_decoder else [])]
        for stack in stacks:
            fully_shard(stack, mesh=mesh, ignored_params=outside)
            stack.register_forward_pre_hook(lambda stack, _: self._used.add(stack))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A time in which the weights are in parts, and all processes go through the layers in step."""
        for stack in self._used:
            # It remembers in which order its layers computed, to ask for the next one's weights beforehand; what the
            # main process did alone, as it measured, the others know nothing of.
            stack.reset_iter_state()
        self._used.clear()
        for layer in self._layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()
        with warnings.catch_warnings():
            # Which must not be written into; nothing here does.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
        self.bring_together()

    def bring_together(self) -> None:
        """Make the weights whole, until they are learnt again."""
        for layer in self._layers:
            layer.set_reshard_after_forward(False)
            layer.unshard()


def _layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """What Transformers keeps on one device: the blocks.

    Raises:
        ConfigError: there are none, or they share weights with each other or with the rest.
    """
    kinds = set(model._no_split_modules or ())
    layers = {name: module for name, module in model.named_modules() if type(module).__name__ in kinds}
    places: dict[nn.Parameter, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        within = next((layer for layer in layers if name.startswith(f"{layer}.")), "")
        places.setdefault(parameter, set()).add(within)
    if not layers or any(len(holders) > 1 for holders in places.values()):
        problem = (
            "its layers share weights" if layers else "Transformers does not say which modules are its layers"
        )
        raise ConfigError(
            f"model.fsdp=true cannot shard {type(model).__name__}: {problem}; leave model.fsdp out"
        )
    return list(layers.values())
