"""Serve a policy over HTTP, in the format of OpenAI's API."""
