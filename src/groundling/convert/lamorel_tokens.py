"""Lamorel's file of PPO on tokens, in whose place a writer stands: it learns to say what its prompt tells it to."""

import math
from typing import Any

from groundling.errors import ConfigError


def writer(strings: Any, longest: int, tokens: int, updates: int) -> dict[str, Any]:
    """By key of ours, what the file comes to, but for what it has in common with Lamorel's other files.

    Args:
        strings: What is to be said, one text of them for each prompt.
        longest: Tokens of a text at most.
        tokens: Of an update.
        updates: Of the training.

    Raises:
        ConfigError: ``strings`` is no list of texts, or a text has no tokens.
    """
    texts = strings if isinstance(strings, list) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ConfigError(
            f"rl_script_args.strings must be a list of texts, as in [turn left], got {strings!r:.80}"
        )
    if longest < 1:
        raise ConfigError(f"rl_script_args.max_ep_len={longest} leaves no token to write: give at least 1")
    return {
        "world.id": "writing",
        "world.pool": "listed",
        "world.args.samples": [{"text": text} for text in texts],
        "world.args.prompt_column": "text",
        "world.args.reference_column": "text",
        "world.args.prompt_prefix": "Say ",
        "world.args.prompt_suffix": "\nYour turn:",
        "world.num_texts": math.ceil(tokens / longest),
        "world.num_tokens": longest,
        "reward.says_reference": {},
        "policy.id": "token",
        # One head of two hidden layers on the policy's own states.
        "policy.args.value": "shared",
        "policy.args.value_hidden_sizes": [1024, 1024],
        "policy.args.value_bias": True,
        "training.steps": updates * tokens,
        "evaluation.episodes": len(texts),
        "evaluation.baselines": ["zero-shot"],
        "evaluation.metrics": [{"id": "says_reference", "args": {}}],
    }
