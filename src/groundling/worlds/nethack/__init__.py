"""NetHack's tasks: its envs, the rewards of its messages, held-out episodes."""

from groundling.worlds.nethack.world import NetHackWorld

__all__ = ["NetHackWorld"]
