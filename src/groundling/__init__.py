"""Groundling: reinforcement learning with language models."""
