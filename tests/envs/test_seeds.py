"""Seeds of training and held-out episodes are disjoint, and have no pattern that an env could follow."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from groundling.envs.seeds import held_out_seed, is_held_out, training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import RunError
from groundling.worlds.text.episodes import held_out_seed_of
from tests.conftest import Corridor

TRAINING = [training_seed(s, i, k) for s, i, k in itertools.product(range(5), range(20), range(200))]
HELD_OUT = [held_out_seed(k) for k in range(20_000)]


class Rooms(Corridor):
    """Four tasks, selected by the seed's remainder, as in RAGEN's ALFWorld."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        assert seed is not None
        return {**observation, "mission": f"find room {seed % 4}"}, info


def test_training_and_held_out_seeds_come_from_disjoint_ranges() -> None:
    assert all(0 <= seed < 2**30 and not is_held_out(seed) for seed in TRAINING)
    assert all(2**30 <= seed < 2**31 and is_held_out(seed) for seed in HELD_OUT)
    assert min(len(set(TRAINING)), len(set(HELD_OUT))) > 19_990  # hardly any seed is repeated


@pytest.mark.parametrize("seeds", [TRAINING, HELD_OUT], ids=["training", "held-out"])
def test_remainders_of_seeds_are_uniform(seeds: Sequence[int]) -> None:
    for n in range(2, 13):
        counts = np.bincount(np.array(seeds) % n, minlength=n)
        expected = len(seeds) / n
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        assert chi_squared < n - 1 + 5 * (2 * (n - 1)) ** 0.5, n  # five standard deviations above the mean


def test_remainders_of_seeds_give_all_tasks_in_both_splits() -> None:
    for seed_of in (lambda i, k: training_seed(1, i, k), held_out_seed_of(40)):
        envs = TextVectorEnv(Rooms, 40, ["left", "right", "stay"], seed_of)
        goals = Counter(observation.goal for observation in envs.reset())
        assert goals.keys() == {f"find room {n}" for n in range(4)} and min(goals.values()) >= 3


def test_a_checkpoint_of_other_episode_seeds_is_refused() -> None:
    """Before November 2026, training seeds were even, so the saved actions would be taken in different episodes."""
    envs, other = (
        TextVectorEnv(Corridor, 2, ["left", "right", "stay"], lambda i, k, scheme=scheme: scheme(0, i, k))
        for scheme in (training_seed, lambda *at: 2 * training_seed(*at))
    )
    other.reset()
    other.step([2, 2])
    state = other.state_dict()
    with pytest.raises(RunError, match=r"has seed \d+ in the checkpoint and seed \d+ in this version"):
        envs.load_state_dict(state)
    former = [{name: value for name, value in one.items() if name != "seed"} for one in state]
    with pytest.raises(RunError, match=r"has a different seed in the checkpoint .* start a new run"):
        envs.load_state_dict(former)
