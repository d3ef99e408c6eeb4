"""Fuzzing: what reads text that others wrote returns, or refuses it in words. `make fuzz` runs the long form."""
