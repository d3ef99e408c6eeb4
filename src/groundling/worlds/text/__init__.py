"""Gymnasium envs described as text, and datasets of their episodes."""
