"""Returns of episodes with a KL penalty."""

from dataclasses import replace

import torch

from groundling.algorithms import Rollout
from groundling.training.tracking import ShapedReturns


def _rollout(rewards: list[list[float]], dones: list[list[int]]) -> Rollout:
    values = torch.tensor(rewards)
    last = torch.zeros(values.shape[1])
    return Rollout([], values.long(), values, values, values, torch.tensor(dones).bool(), last, [])


def test_an_episode_is_summed_over_the_ends_of_rollouts() -> None:
    returns = ShapedReturns(2)
    first = _rollout([[1.0, 0.0], [2.0, 0.0]], [[1, 0], [0, 0]])
    assert returns.add(first, first.rewards - 0.5) == {
        "shaped_return_mean": 0.5,
        "shaped_return_std": 0,
        "shaped_return_min": 0.5,
        "shaped_return_max": 0.5,
        "shaping_mean": -0.5,
        "shaping_std": 0,
        "shaping_min": -0.5,
        "shaping_max": -0.5,
    }
    nothing = _rollout([[0.0, 0.0]], [[0, 0]])
    assert set(returns.add(nothing, nothing.rewards).values()) == {None}
    second = _rollout([[4.0, 8.0]], [[1, 1]])
    figures = returns.add(second, second.rewards - 0.25)
    # The first env: 2 - 0.5 + 4 - 0.25; the second: -0.5 - 0.5 + 8 - 0.25.
    assert (figures["shaped_return_min"], figures["shaped_return_max"]) == (5.25, 6.75)
    assert (figures["shaping_min"], figures["shaping_max"]) == (-1.25, -0.75)
    assert figures["shaped_return_mean"] == 6 and figures["shaped_return_std"] == 0.75
    assert not returns.sums.any()


def test_an_episode_in_which_a_group_was_cut_off_counts_as_far_as_it_went() -> None:
    """The episode counts up to that point, as in return_mean, and belongs to no other update."""
    returns = ShapedReturns(1)
    for rewards, dones, expected in (([[9.0], [9.0]], [[0], [0]], 18.0), ([[1.0], [2.0]], [[0], [1]], 3.0)):
        rollout = replace(_rollout(rewards, dones), groups=torch.zeros(1).long())
        assert returns.add(rollout, rollout.rewards)["shaped_return_mean"] == expected
