"""Files, documents, terminal output and HTTP."""
