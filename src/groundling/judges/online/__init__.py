"""Online judging: a judge that is asked while training runs, and a reward model that learns from its answers."""
