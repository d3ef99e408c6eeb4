"""Texts written to a pool's prompts: rollouts of tokens, and texts to a held-out split."""

from groundling.worlds.writing.world import WritingWorld

__all__ = ["WritingWorld"]
