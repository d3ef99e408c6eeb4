"""Querying judges: the judges, the question, how captions are quoted, and how replies are parsed."""
