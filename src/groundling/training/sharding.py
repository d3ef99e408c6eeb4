"""Weights, gradients and moments of large language models in parts, one on each process of a run (FSDP)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from groundling.configs.schema import Config
from groundling.devices import find_device
from groundling.errors import ConfigError
from groundling.lm import LanguageModel
from groundling.policies.policy import Policy
from groundling.policies.token import TokenPolicy
from groundling.world import World, in_parts


def shard(config: Config, policy: Policy, world: World) -> Shards:
    """Deal the layers of a run's policy out over its processes.

    Raises:
        ConfigError: they cannot be.
    """
    if world.size == 1:
        raise ConfigError(
            "model.fsdp=true deals the layers out over several processes, and this is one: start it with torchrun "
            "--nproc-per-node N -m groundling train …, or leave it"
        )
    if not isinstance(policy, TokenPolicy):
        raise ConfigError(
            f"model.fsdp=true is for policies that write (policy.id=token), not {config.policy.id}"
        )
    if config.algorithm.id == "trpo":
        raise ConfigError(
            "model.fsdp=true: trpo takes gradients of gradients, which sharded layers do not give"
        )
    for name, value in {"load_in_4bit": False, "compile": False, "device_map": None}.items():
        if (given := getattr(config.model, name)) != value:
            raise ConfigError(f"model.fsdp=true does not go with model.{name}={given}: leave one of them")
    return Shards(policy, world, find_device(config.device))


class Shards:
    """The layers of a policy's language models, dealt out over the processes (PyTorch's `fully_shard`; ZeRO, arXiv
    1910.02054).

    While the policy learns, a layer's weights are whole only as long as it computes, its gradients are summed and dealt
    out as soon as they are there, and the optimizer's moments are of this process's part. At all other times the
    weights are whole: the processes write texts of different lengths, and the main one measures and saves alone, so
    that they could not meet at each layer. What is in no layer (embeddings, the last norm, heads) is whole always.

    Args:
        policy: One that writes; changed in place, before its optimizer is made.
        world: The processes.
        device: This process's.
    """

    def __init__(self, policy: TokenPolicy, world: World, device: torch.device) -> None:
        mesh = init_device_mesh(device.type, (world.size,))
        self._layers: list[FSDPModule] = []
        for lm in policy.language_models:
            self._shard(lm, mesh)
            lm.to(device)  # what is in no layer
        policy.to(device)
        for module in self._layers:
            # The losses of all processes add up to the minibatch's mean: gradients are summed.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)

    def _shard(self, lm: LanguageModel, mesh: Any) -> None:
        names = set(lm.model._no_split_modules or ())
        layers = [module for module in lm.model.modules() if type(module).__name__ in names]
        if not layers:
            raise ConfigError(
                f"model.fsdp=true: Transformers does not tell the layers of {type(lm.model).__name__}: leave it"
            )
        inside = {id(p) for layer in layers for p in layer.parameters()}
        for layer in layers:
            self._layers.append(fully_shard(layer, mesh=mesh))
        outside = {p for p in lm.model.parameters() if id(p) not in inside and not in_parts(p)}
        # The stacks of layers, so that the next layer's weights come while this one computes.
        stacks = [lm.model.get_decoder(), *([lm.model.get_encoder()] if lm.is_encoder_decoder else [])]
        for stack in stacks:
            fully_shard(stack, mesh=mesh, ignored_params=outside)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A time in which the weights are in parts, and all processes go through the layers in step."""
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
