"""Evaluation: held-out episodes, tables, reports."""
