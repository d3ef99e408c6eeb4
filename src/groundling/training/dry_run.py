"""`groundling train --dry-run`: what a run would do, and about what it would cost."""

import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import Parameter

from groundling.config.schema import Config
from groundling.policies.policy import Policy
from groundling.policies.turns import Turn
from groundling.runtime.devices import find_device
from groundling.training.build import make_algorithm, make_policy, world_of


@dataclass(frozen=True)
class DryRun:
    """Figures of a dry run."""

    device: str
    parameters: int
    trainable: int
    updates: int
    memory_bytes: int
    """Weights (a frozen reference's, too), gradients and Adam's two moments. On top come activations, which the
    micro-batch size decides, and the models of metrics and rewards, which are loaded only when they are asked."""
    seconds: float
    """Measured on a few steps and one micro-batch, and multiplied."""
    prompt: str | None
    """The first prompt, where the policy reads one."""


def dry_run(config: Config) -> DryRun:
    """Build everything, take a few steps and one optimizer step, write nothing and ask no judge.

    Raises:
        GroundlingError: a part of the run cannot be made, what it is validated with among them.
    """
    config = replace(config, model=replace(config.model, compile=False))  # which a few steps are not worth
    world = world_of(config)
    policy = make_policy(config.policy, config.model, config.algorithm, world, learns=True)
    algorithm: Any = make_algorithm(config.algorithm, policy)
    short = world.rehearsal(policy.recurrence, algorithm.steps_per_gradient)
    collector = short.collector(policy, algorithm, slice(0, short.config.num_rows))
    epochs, updates = config.training.epochs, 0
    if epochs is not None:  # of whole texts
        whole = world.collector(policy, algorithm, slice(0, config.world.num_rows))
        steps, updates = whole.in_passes(epochs)
        config = replace(config, training=replace(config.training, steps=steps))
    world.check_measures(policy)  # what is missing is told
    generator = torch.Generator().manual_seed(config.seed)

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".* episodes were not over after"
        )  # as few steps as these hardly end one
        collector.collect(policy, generator=generator)  # warms up
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

    steps_per_update = config.world.steps_per_row * config.world.num_rows
    return DryRun(
        device=str(find_device(config.device)),
        parameters=_count(policy, trainable=False),
        trainable=_count(policy, trainable=True),
        updates=updates or -(-config.training.steps // steps_per_update),
        memory_bytes=_memory(policy),
        seconds=seconds * config.training.steps,
        prompt=prompts[0] if prompts else None,
    )


def _count(policy: Policy, trainable: bool) -> int:
    return sum(p.numel() for p in _parameters(policy) if p.requires_grad or not trainable)


def _memory(policy: Policy) -> int:
    return sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1) for p in _parameters(policy))


def _parameters(policy: Policy) -> list[Parameter]:
    """The policy's and its reference's, each once: parts of them may share weights."""
    reference = getattr(policy, "reference", None)
    parameters = [*policy.parameters(), *(() if reference is None else reference.parameters())]
    return list({id(parameter): parameter for parameter in parameters}.values())
