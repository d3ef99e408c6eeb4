"""Groundling: reinforcement learning with language models as policies, judges and text generators.

Importing the package registers its envs with Gymnasium. PyTorch and Transformers are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from groundling import envs
from groundling.errors import ConfigError, GroundlingError, RunError

if TYPE_CHECKING:
    from groundling import algorithms, judges, lm, metrics, policies, prompts, rewards, worlds
    from groundling.agent import Agent, load
    from groundling.algorithms import Algorithm, Rollout
    from groundling.finetuning import finetune
    from groundling.lm import LanguageModel
    from groundling.policies import Policy
    from groundling.runs import Evaluation, Run, make_world, train
    from groundling.worlds import World

__version__ = "0.2.0"
__all__ = [
    "Agent",
    "Algorithm",
    "ConfigError",
    "Evaluation",
    "GroundlingError",
    "LanguageModel",
    "Policy",
    "Rollout",
    "Run",
    "RunError",
    "World",
    "algorithms",
    "envs",
    "finetune",
    "judges",
    "lm",
    "load",
    "make_world",
    "metrics",
    "policies",
    "prompts",
    "rewards",
    "train",
    "worlds",
]

_SUBPACKAGES = ("algorithms", "judges", "lm", "metrics", "policies", "prompts", "rewards", "worlds")
_PLACES = {  # Maps each public name to its module, which is imported on first use
    "Agent": "agent",
    "Algorithm": "algorithms",
    "Evaluation": "runs",
    "LanguageModel": "lm",
    "Policy": "policies",
    "Rollout": "algorithms",
    "Run": "runs",
    "World": "worlds",
    "finetune": "finetuning",
    "load": "agent",
    "make_world": "runs",
    "train": "runs",
}

envs.register()


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"groundling.{_PLACES[name]}"), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"groundling.{name}")
    raise AttributeError(f"module 'groundling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
