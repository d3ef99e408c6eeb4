"""Judges, their questions, the quoting of captions, and the parsing of replies."""
