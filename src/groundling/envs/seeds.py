"""Seeds of training and held-out episodes."""

import numpy as np

SCHEME = "ranges"
"""Seeding scheme, stored with evaluations because results are only comparable within a scheme. Before 28 November
2026, training seeds were even and held-out seeds odd, and no scheme was stored."""
_SPLIT = 2**30  # Training seeds are below this number; held-out seeds are between it and 2³¹


def training_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Return the seed, in [0, 2³⁰), of an episode in one of a run's envs, independent of processes and timing."""
    return int(np.random.SeedSequence((run_seed, env_index, episode)).generate_state(1, np.uint32)[0]) % _SPLIT


def held_out_seed(episode: int) -> int:
    """Return the seed, in [2³⁰, 2³¹), of held-out episode ``episode``, which is the same for every run and agent."""
    # SeedSequence pads with zeros: (episode,) is (episode, 0, 0).
    return _SPLIT + int(np.random.SeedSequence((episode, 0, 0, 1)).generate_state(1, np.uint32)[0]) % _SPLIT


def is_held_out(seed: int) -> bool:
    """Return True if a seed belongs to a held-out episode; meant for envs with separate games for evaluation."""
    return seed >= _SPLIT
