"""Prompts: from goal, history and actions to the text that a language model reads."""

from groundling.prompts.brief import brief_prompt, present_prompt
from groundling.prompts.conversation import Conversation
from groundling.prompts.forms import narrative_prompt, tagged_prompt
from groundling.prompts.glam import glam_prompt
from groundling.prompts.prompt import Prompt, PromptReader, prompts

register = prompts.register

__all__ = [
    "Conversation",
    "Prompt",
    "PromptReader",
    "brief_prompt",
    "glam_prompt",
    "narrative_prompt",
    "present_prompt",
    "prompts",
    "register",
    "tagged_prompt",
]
