"""NetHack's tasks, and rewards for its messages."""
