"""Gymnasium envs that are described in words, and datasets of their episodes."""

from groundling.judges.asking.subjects import register_subject
from groundling.worlds.text.judging import TEXT
from groundling.worlds.text.world import TextWorld

register_subject("text", TEXT)

__all__ = ["TextWorld"]
