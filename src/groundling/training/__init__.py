"""Runs: collecting, updating, checkpoints, tracking."""
