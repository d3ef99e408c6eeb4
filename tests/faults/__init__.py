"""Faults: kills, damaged files, full disks, two processes at the same time. `make faults` runs the long version."""
