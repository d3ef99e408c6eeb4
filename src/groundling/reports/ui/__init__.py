"""Runs, episodes, judges and studies in a browser: `groundling ui`, on this machine alone."""
