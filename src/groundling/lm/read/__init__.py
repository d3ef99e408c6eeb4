"""Reading: scores and hidden states."""
