"""PPO in corridors."""

import copy
import math

import pytest
import torch

from groundling.algorithms import PPO, Rollout
from groundling.algorithms.rollout import micro_batches
from groundling.errors import RunError
from groundling.policies.policy import Policy, Work
from groundling.runtime.processes import Processes
from tests.algorithms.rollouts import corridor, difference, generator, updated
from tests.conftest import TablePolicy


def _policy_and_rollout() -> tuple[Policy, Rollout]:
    torch.manual_seed(0)
    policy = TablePolicy()
    rollout, _ = corridor(policy, 8, 16).collect(policy, generator=generator())
    return policy, rollout


def _learn(policy: Policy, rollout: Rollout, **options: object) -> tuple[Policy, dict[str, float]]:
    return updated(policy, rollout, "ppo", **{"learning_rate": 1e-2, "minibatch_size": 32, **options})


def test_learns_the_corridor() -> None:
    torch.manual_seed(0)
    policy, ppo = TablePolicy(), PPO(learning_rate=3e-2, normalize_advantages=True)
    collector = corridor(policy, 16, 20)
    ppo.setup(policy)
    draws, rates = generator(), []
    for _ in range(15):
        rollout, episodes = collector.collect(policy, generator=draws)
        ppo.update(policy, rollout, generator=draws)
        rates.append(sum(e.success for e in episodes) / len(episodes))
    assert rates[0] < 0.7
    assert rates[-1] > 0.95


def test_the_first_minibatch_is_evaluated_by_the_old_policy() -> None:
    policy, rollout = _policy_and_rollout()
    _, figures = _learn(policy, rollout, minibatch_size=len(rollout), epochs=1)
    assert figures["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert figures["clip_fraction"] == 0


def test_no_step_is_taken_on_a_minibatch_beyond_target_kl() -> None:
    policy, rollout = _policy_and_rollout()
    whole = {"minibatch_size": len(rollout), "learning_rate": 1.0}
    once, _ = _learn(policy, rollout, epochs=1, **whole)
    stopped, figures = _learn(policy, rollout, epochs=9, target_kl=0.01, **whole)
    assert figures["approx_kl"] > 0.01  # the mean includes the last minibatch
    assert difference(once, stopped) == 0 < difference(once, policy)


def test_the_linear_schedule_reaches_zero() -> None:
    policy, rollout = _policy_and_rollout()
    ppo = PPO(learning_rate=1.0, learning_rate_schedule="linear")
    frozen = copy.deepcopy(policy)
    ppo.setup(frozen)
    ppo.update(frozen, rollout, generator=generator(), remaining=0.0)
    assert difference(frozen, policy) == 0


def test_nan_stops_before_the_step() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.rewards[3, 2] = math.nan
    ppo = PPO(minibatch_size=len(rollout))
    ppo.setup(policy)
    before = copy.deepcopy(policy)
    with pytest.raises(RunError, match="learning_rate"):
        ppo.update(policy, rollout, generator=generator())
    assert difference(before, policy) == 0


def test_micro_batches_partition_the_minibatch_and_group_similar_work() -> None:
    indices = torch.randperm(23)
    costs = [(7 * i) % 10 for i in range(23)]
    pieces = list(micro_batches(indices, 5, [Work(cost, i) for i, cost in enumerate(costs)], Processes()))
    assert sorted(torch.cat(pieces).tolist()) == list(range(23))
    assert all(len(p) <= 5 for p in pieces)
    flat = [costs[i] for p in pieces for i in p.tolist()]
    assert flat == sorted(flat)
    assert torch.equal(torch.cat(list(micro_batches(indices, 5, None, Processes()))), indices)
