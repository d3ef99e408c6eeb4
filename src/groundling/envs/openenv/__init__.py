"""Environments on OpenEnv servers as text envs: ``world.env=openenv:URL``."""
