"""Text generation: the token MDP and pools of samples."""

from groundling.envs.bundled import TEXT_GENERATION as ENV_ID

# Importing these modules registers their pools.
from groundling.envs.text_generation import columns, preferences, reasoning_gym, tasks, translation  # noqa: F401
from groundling.envs.text_generation.pools import Pool, Sample, SampleOrder, Split, pools

__all__ = ["ENV_ID", "Pool", "Sample", "SampleOrder", "Split", "pools"]
