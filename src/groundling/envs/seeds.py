"""Episode seeds: training and held-out episodes have hashed seeds from two disjoint ranges.

A range says nothing of a seed's remainders, so an env that picks its task by ``seed % n`` meets all n tasks in both
splits.
"""

import numpy as np

SCHEME = "ranges"
"""Stored with evaluations, whose figures compare only with those of the same scheme. Before 28 November 2026 training
seeds were the even numbers and held-out seeds the odd ones, and nothing was stored."""
_SPLIT = 2**30
"""Training seeds are below it, held-out seeds from it up to 2³¹."""


def training_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Seed of the ``episode``-th episode of a run's ``env_index``-th env: an int in [0, 2³⁰).

    It does not depend on how envs are spread over processes, nor on which of them finishes first.
    """
    return _hash(run_seed, env_index, episode)


def held_out_seed(episode: int) -> int:
    """Seed of the ``episode``-th held-out episode: an int in [2³⁰, 2³¹), the same for every run and agent."""
    return _SPLIT + _hash(episode, 0, 0, 1)  # SeedSequence pads with zeros: (episode,) is (episode, 0, 0)


def is_held_out(seed: int) -> bool:
    """Return True for the seed of a held-out episode, for envs with separate games for evaluation."""
    return seed >= _SPLIT


def _hash(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0]) % _SPLIT
