"""Conversion of texts and conversations to token ids and back, with any Transformers tokenizer."""
