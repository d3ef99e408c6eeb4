"""Engines of others as text envs, one module each; an engine is imported when its env is created."""
