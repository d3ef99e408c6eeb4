"""Small rollouts, and updates on copies of a policy."""

import copy
from typing import Any

import torch

from groundling.algorithms import Rollout, create
from groundling.algorithms.rollout import Batch, Targets
from groundling.envs.seeds import training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.policies.policy import Policy
from groundling.worlds.text.collect import EnvCollector
from tests.conftest import Corridor, SequencePolicy

PROMPTS = [0, 1, 2] * 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texts() -> tuple[SequencePolicy, Rollout]:
    """Return a policy and 24 texts of different lengths that it generated for three prompts."""
    torch.manual_seed(0)
    policy = SequencePolicy()
    return policy, policy.write(PROMPTS, generator())


def corridor(policy: Policy, num_envs: int, num_steps: int) -> EnvCollector:
    """Return a collector that steps corridors."""
    envs = TextVectorEnv(Corridor, num_envs, ["left", "right", "stay"], seed_of=lambda i, k: training_seed(0, i, k))
    envs.reset()
    return EnvCollector(envs, num_steps, policy.initial_memory(num_envs))


def batch_of(policy: Policy, rollout: Rollout, advantages: torch.Tensor | None = None) -> Batch:
    """Return a rollout as a batch; by default, the advantages are the rewards."""
    rewards = rollout.rewards
    return Batch.of(policy, rollout, Targets(rewards if advantages is None else advantages, rewards))


def updated(policy: Policy, rollout: Rollout, algorithm: str, **options: Any) -> tuple[Any, dict[str, float]]:
    """Return a copy of the policy after one update, and the update's metrics."""
    learner, made = copy.deepcopy(policy), create(algorithm, **options)
    made.setup(learner)
    return learner, made.update(learner, rollout, generator=generator(1))


def difference(a: Policy, b: Policy) -> float:
    """Return the largest difference between two policies' weights."""
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))
