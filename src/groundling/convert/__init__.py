"""Readers of the files that the rebuilt systems were run with."""
