"""Text generation: the token MDP, and the pools of samples that it writes for."""

import gymnasium

# Their pools register themselves.
from groundling.envs.text_generation import columns, dialogue, tasks, totto, translation  # noqa: F401
from groundling.envs.text_generation.pools import Pool, Sample, Split, pools
from groundling.envs.text_generation.sampler import SampleOrder

__all__ = ["ENV_ID", "Pool", "Sample", "SampleOrder", "Split", "pools", "register"]

ENV_ID = "TextGeneration-v0"
ABOUT = "a text for each prompt of a pool, token by token"
"""What `groundling list envs` says of it."""


def register() -> None:
    """Register the token MDP with Gymnasium; torch and transformers are imported when one is made."""
    gymnasium.register(ENV_ID, entry_point=f"{__name__}.env:TextGenerationEnv")
