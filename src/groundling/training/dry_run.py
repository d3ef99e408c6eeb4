"""`groundling train --dry-run`: what a run would do, and an estimate of its cost."""

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter

from groundling.config.schema import Config
from groundling.policies.policy import Policy
from groundling.policies.turns import Turn
from groundling.runtime.devices import find_device
from groundling.training.build import make_algorithm, make_policy, world_of
from groundling.worlds.protocols import TrainingMeasures


@dataclass(frozen=True)
class DryRun:
    """Figures of a dry run."""

    device: str
    parameters: int
    trainable: int
    updates: int
    memory_bytes: int
    """Weights (also a frozen reference's), gradients and Adam's two moments; without activations, which depend on the
    micro-batch size, and without the models of metrics and rewards."""
    seconds: float  # Extrapolated from a few steps and one gradient step
    prompt: str | None  # The first prompt, if the policy reads one


def dry_run(config: Config) -> DryRun:
    """Build everything, take a few steps and one optimizer step; write nothing and ask no judge."""
    # Compilation is slower for so few steps.
    config = config.model_copy(update={"model": config.model.model_copy(update={"compile": False})})
    world = world_of(config)
    policy = make_policy(config.policy, config.model, config.algorithm, world, learns=True)
    algorithm: Any = make_algorithm(config.algorithm, policy)
    short = world.shortened(policy.recurrence, algorithm.steps_per_gradient)
    collector = short.collector(policy, algorithm, slice(0, short.config.num_rows))
    epochs, steps, updates = config.training.epochs, config.training.steps, 0
    if epochs is not None:
        whole = world.collector(policy, algorithm, slice(0, config.world.num_rows))
        steps, updates = whole.in_passes(epochs)
    if isinstance(world, TrainingMeasures):
        world.check_measures(policy)
    generator = torch.Generator().manual_seed(config.seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* episodes were not over after")  # in so few steps
        collector.collect(policy, generator=generator)  # warm-up
        started = time.monotonic()
        rollout, _ = collector.collect(policy, generator=generator)
    collected = time.monotonic()
    algorithm.update(policy, rollout, generator=generator)
    learnt = time.monotonic()
    collector.close()
    transitions = rollout.num_transitions
    learnt_from = transitions - transitions % algorithm.steps_per_gradient
    seconds = (collected - started) / transitions + (learnt - collected) / learnt_from
    first = rollout.observations[0]
    prompts = policy.prompts([first.observation if isinstance(first, Turn) else first])
    parameters = _parameters(policy)
    return DryRun(
        device=str(find_device(config.device)),
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        updates=updates or -(-steps // (config.world.steps_per_row * config.world.num_rows)),
        memory_bytes=sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1) for p in parameters),
        seconds=seconds * steps,
        prompt=prompts[0] if prompts else None,
    )


def _parameters(policy: Policy) -> list[Parameter]:
    """Return the parameters of a policy and its reference, each once; the two may share weights."""
    reference = getattr(policy, "reference", None)
    parameters = [*policy.parameters(), *(() if reference is None else reference.parameters())]
    return list({id(parameter): parameter for parameter in parameters}.values())
