"""Servers for other programs: language models with OpenAI's API, and worlds as OpenEnv environments."""
