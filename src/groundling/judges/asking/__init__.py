"""Asking: who judges, what is asked, how captions are shown, and which replies count."""
