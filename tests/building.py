"""Build the components of a config."""

from pathlib import Path
from typing import Any

from groundling.algorithms.algorithm import Algorithm
from groundling.config.schema import Config
from groundling.policies.policy import Policy
from groundling.runtime.processes import Processes
from groundling.training.build import make_algorithm, make_policy, world_of


def policy_of(config: Config, checkpoint: Path | None = None, *, learns: bool = False) -> Any:
    """Build a config's policy, with the weights of a checkpoint if one is given."""
    world = world_of(config, checkpoint)
    return make_policy(config.policy, config.model, config.algorithm, world, learns=learns)


def algorithm_of(config: Config, policy: Policy, processes: Processes | None = None) -> Algorithm:
    """Build a config's algorithm, so that it can train ``policy``."""
    return make_algorithm(config.algorithm, policy, processes)
