"""NetHack's episodes: who plays them, what they come to, and how they look."""
