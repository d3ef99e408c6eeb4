"""NetHack's tasks, and the rewards of its messages."""

from groundling.judges.asking.subjects import register_subject
from groundling.worlds.nethack.judging import NETHACK
from groundling.worlds.nethack.world import NetHackWorld

register_subject("nethack", NETHACK)

__all__ = ["NetHackWorld"]
