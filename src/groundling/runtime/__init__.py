"""Processes, devices and kernels."""
