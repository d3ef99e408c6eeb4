"""Gymnasium envs with textual observations, NetHack tasks, and text generation."""

import importlib
from typing import TYPE_CHECKING, Any

from groundling.envs.bundled import ABOUT, LEVELS, register
from groundling.envs.text_env import TextEnv

if TYPE_CHECKING:
    from groundling.envs import babyai_text, engines, nethack, text_generation
    from groundling.envs.tools import ToolEnv

_SUBPACKAGES = ("babyai_text", "engines", "nethack", "text_generation")


def try_one() -> str:
    """Create a bundled env, start an episode, and return a one-sentence summary."""
    import gymnasium

    _, info = gymnasium.make(next(iter(LEVELS))).reset(seed=0)
    return f"BabyAI-Text describes {len(info['descriptions'])} things"


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "ToolEnv":
        return importlib.import_module(f"{__name__}.tools").ToolEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ABOUT",
    "TextEnv",
    "ToolEnv",
    "babyai_text",
    "engines",
    "nethack",
    "register",
    "text_generation",
    "try_one",
]
