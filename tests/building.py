"""The parts of a config, as training and evaluation make them."""

from pathlib import Path
from typing import Any

from groundling.algorithms.algorithm import Algorithm
from groundling.config.schema import Config
from groundling.policies.policy import Policy
from groundling.runtime.processes import Processes
from groundling.training.build import make_algorithm, make_policy, world_of


def policy_of(config: Config, checkpoint: Path | None = None, *, learns: bool = False) -> Any:
    """A config's policy; of a checkpoint with its weights."""
    world = world_of(config, checkpoint)
    return make_policy(config.policy, config.model, config.algorithm, world, learns=learns)


def algorithm_of(config: Config, policy: Policy, processes: Processes | None = None) -> Algorithm:
    """A config's algorithm, ready to train ``policy``."""
    return make_algorithm(config.algorithm, policy, processes)
