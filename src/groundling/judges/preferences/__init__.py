"""Preference datasets: pairs of segments, what annotators said about them, and the store of their answers."""
