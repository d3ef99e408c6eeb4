"""NetHack's tasks, and the rewards of its messages."""
