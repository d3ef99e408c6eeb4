"""Config files of GLAM, Lamorel and RL4LMs as experiments."""
