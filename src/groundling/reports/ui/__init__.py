"""`groundling ui`: show runs, episodes, judges and studies in a browser on this machine."""
