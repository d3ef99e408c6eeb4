"""Faults: kills, damaged files, full disks, two processes at once. `make faults` runs the long form."""
