"""Texts to a pool's prompts."""

from groundling.judges.asking.subjects import register_subject
from groundling.worlds.writing.judging import WRITING
from groundling.worlds.writing.world import WritingWorld

register_subject("writing", WRITING)

__all__ = ["WritingWorld"]
