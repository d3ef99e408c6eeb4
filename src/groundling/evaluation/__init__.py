"""Evaluation on held-out episodes."""
