"""Servers for other programs: worlds as OpenEnv environments."""
