"""Faults: kills, damaged files, full disks, two at once. `make faults` runs the long form, the tests a sample of it."""
