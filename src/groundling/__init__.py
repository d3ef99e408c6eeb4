"""Groundling: reinforcement learning with language models, as policies, as judges, as writers.

Importing it registers its envs with Gymnasium. Heavy parts (torch, transformers) are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from groundling import envs
from groundling.errors import ConfigError, GroundlingError, RunError

if TYPE_CHECKING:
    from groundling import algorithms, metrics, policies, prompts, rewards
    from groundling.lm import LanguageModel

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "GroundlingError",
    "LanguageModel",
    "RunError",
    "algorithms",
    "envs",
    "metrics",
    "policies",
    "prompts",
    "rewards",
]

_SUBPACKAGES = ("algorithms", "lm", "metrics", "policies", "prompts", "rewards")

envs.register()


def __getattr__(name: str) -> Any:
    if name == "LanguageModel":
        return importlib.import_module("groundling.lm").LanguageModel
    if name in _SUBPACKAGES:
        return importlib.import_module(f"groundling.{name}")
    raise AttributeError(f"module 'groundling' has no attribute {name!r}")
