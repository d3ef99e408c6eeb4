"""Worlds: where experience comes from, and what they offer a policy."""

from groundling.worlds.world import WorldSpec

__all__ = ["WorldSpec"]
