"""BabyAI-Text: BabyAI's worlds, told in words (GLAM, arXiv 2302.02662)."""

import gymnasium

from groundling.envs.babyai_text.controls import CONTROLS
from groundling.envs.babyai_text.descriptions import describe
from groundling.envs.babyai_text.expert import Expert, ExpertError
from groundling.envs.babyai_text.levels import MIXED_TASKS, LocalLevel
from groundling.envs.babyai_text.missions import translate_mission
from groundling.envs.babyai_text.text import ACTIONS, BabyAIText, translate_actions

ABOUT = "GLAM's text levels"
"""What `groundling list envs` says of each."""
LEVELS: dict[str, dict[str, object]] = {
    "BabyAI-MixedTrainLocal-v0": {"tasks": MIXED_TASKS, "split": "train"},
    "BabyAI-MixedTestLocal-v0": {"tasks": MIXED_TASKS, "split": "test"},
    "BabyAI-PickUpSeqGoToLocal-v0": {"tasks": ("pick up seq go to",), "split": "train"},
    "BabyAI-PickUpThenGoToLocal-v0": {"tasks": ("pick up then go to",), "split": "train"},
    "BabyAI-GoToAfterPickUpLocal-v0": {"tasks": ("go to after pick up",), "split": "train"},
    "BabyAI-PickUpSeqPickUpLocal-v0": {"tasks": ("pick up seq pick up",), "split": None},
}
"""GLAM's levels by Gymnasium id, with the arguments of `LocalLevel` that make them."""


def make_level(
    language: str = "english", compat: str | None = None, control: str | None = None, **kwargs: object
) -> BabyAIText:
    """One of `LEVELS`, told in words (see `BabyAIText`); the keyword arguments are those of `LocalLevel`."""
    return BabyAIText(LocalLevel(**kwargs), language, compat, control)  # type: ignore[arg-type]


def register() -> None:
    """Register `LEVELS` with Gymnasium."""
    for id, arguments in LEVELS.items():
        gymnasium.register(id, entry_point=make_level, kwargs=arguments)


__all__ = [
    "ACTIONS",
    "CONTROLS",
    "LEVELS",
    "BabyAIText",
    "Expert",
    "ExpertError",
    "LocalLevel",
    "describe",
    "make_level",
    "register",
    "translate_actions",
    "translate_mission",
]
