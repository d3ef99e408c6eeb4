"""Environments of OpenEnv servers as text envs: ``world.env=openenv:URL``."""
