"""Loading language models."""
