"""Texts written to a pool's prompts."""
