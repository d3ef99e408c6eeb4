"""Fuzzing of parsers, each of which returns or raises an error with a message. `make fuzz` runs the long version."""
