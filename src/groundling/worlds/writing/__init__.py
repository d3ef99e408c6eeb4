"""Texts to a pool's prompts."""
