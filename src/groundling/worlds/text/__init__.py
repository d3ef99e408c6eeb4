"""Any Gymnasium env that is told in words: its envs, datasets of its episodes, held-out episodes."""

from groundling.worlds.text.world import TextWorld

__all__ = ["TextWorld"]
