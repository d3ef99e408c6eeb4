"""Fuzzing of readers: each returns, or refuses with a message. `make fuzz` runs the long form."""
