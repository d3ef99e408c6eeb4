"""Gymnasium envs that are described in words, and datasets of their episodes."""
