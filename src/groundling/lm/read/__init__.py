"""Compute scores and hidden states of texts."""
