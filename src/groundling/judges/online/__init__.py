"""Online judging: a judge is queried during training, and a reward model learns from its answers."""
