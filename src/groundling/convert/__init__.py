"""Conversion of GLAM, Lamorel and RL4LMs config files to experiments."""
