"""Episode seeds: training and held-out episodes never share one."""

import numpy as np


def training_seed(run_seed: int, env_index: int, episode: int) -> int:
    """Seed of the ``episode``-th episode of a run's ``env_index``-th env: an even int below 2³¹.

    It depends on the env's own index and episode count alone: how envs are spread over processes, or which
    of them finishes first, changes nothing.
    """
    return _hash(run_seed, env_index, episode) & ~1


def held_out_seed(episode: int) -> int:
    """Seed of the ``episode``-th held-out episode: an odd int below 2³¹, so that no run ever trains on it.

    The same for every run and agent, so that all are evaluated on the same episodes.
    """
    return _hash(episode) | 1


def _hash(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0]) & 0x7FFFFFFF
