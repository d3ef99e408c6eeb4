"""Training runs: the training loop, checkpoints and tracking."""
