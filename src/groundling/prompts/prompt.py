"""Prompts by id: how a text observation is told to a language model."""

from collections.abc import Callable

from groundling.envs.observation import TextObservation
from groundling.prompts.glam import glam_prompt
from groundling.registry import Registry

Prompt = Callable[[TextObservation, str], str]
"""From an observation and a language to the text that a language model reads to decide."""

prompts: Registry[str] = Registry("prompt")


@prompts.register("glam")
def glam(observation: TextObservation, language: str) -> str:
    """GLAM's prompt: actions, goal, and the recent observations and actions."""
    return glam_prompt(
        observation.goal,
        observation.actions,
        observation.descriptions,
        observation.past_actions,
        language=language,
    )
