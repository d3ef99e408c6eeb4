"""Writing: decoding and sampling."""
