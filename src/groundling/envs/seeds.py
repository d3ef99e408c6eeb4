"""Episode seeds: training and held-out episodes have hashed seeds from two disjoint ranges. A seed's remainder does
not depend on its range, so an env that picks its task by ``seed % n`` has all n tasks in both splits.
"""

import numpy as np

SCHEME = "ranges"
"""Scheme of seeds, stored with evaluations: figures of different schemes are not comparable. Before 28 November 2026
training seeds were even, held-out seeds odd, and no scheme was stored."""
_SPLIT = 2**30  # Training seeds are below, held-out seeds at least this number and below 2³¹


def training_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Return the seed of the ``episode``-th episode of a run's ``env_index``-th env, in [0, 2³⁰). It depends neither
    on the number of processes nor on the order in which envs finish.
    """
    return int(np.random.SeedSequence((run_seed, env_index, episode)).generate_state(1, np.uint32)[0]) % _SPLIT


def held_out_seed(episode: int) -> int:
    """Return the seed of the ``episode``-th held-out episode, in [2³⁰, 2³¹), the same for every run and agent."""
    # SeedSequence pads with zeros: (episode,) is (episode, 0, 0).
    return _SPLIT + int(np.random.SeedSequence((episode, 0, 0, 1)).generate_state(1, np.uint32)[0]) % _SPLIT


def is_held_out(seed: int) -> bool:
    """Return True for the seed of a held-out episode, for envs with separate games for evaluation."""
    return seed >= _SPLIT
