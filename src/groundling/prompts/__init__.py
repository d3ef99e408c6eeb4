"""Prompts: goal, history and admissible actions as the text or conversation that a language model reads."""

from groundling.prompts.glam import glam_prompt
from groundling.prompts.prompt import BLANK, Conversation, Prompt, PromptReader, check_prompts, prompts

register = prompts.register

__all__ = ["BLANK", "Conversation", "Prompt", "PromptReader", "check_prompts", "glam_prompt", "prompts", "register"]
