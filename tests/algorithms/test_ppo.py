"""PPO in corridors, and NLPO on texts."""

import copy
import json
import math

import pytest
import torch

from groundling.algorithms import NLPO, PPO, Rollout
from groundling.algorithms.rollout import micro_batches
from groundling.errors import RunError
from groundling.policies.policy import Policy, Work
from groundling.runtime.processes import Processes
from tests.algorithms.rollouts import PROMPTS, corridor, difference, generator, updated
from tests.conftest import MaskedSequencePolicy, TablePolicy


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


def test_no_step_is_taken_on_a_minibatch_beyond_target_kl() -> None:
    policy, rollout = _policy_and_rollout()
    whole = {"minibatch_size": len(rollout), "learning_rate": 1.0}
    once, _ = _learn(policy, rollout, epochs=1, **whole)
    stopped, figures = _learn(policy, rollout, epochs=9, target_kl=0.01, **whole)
    assert figures["approx_kl"] > 0.01  # the mean includes the last minibatch
    assert difference(once, stopped) == 0 < difference(once, policy)


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


def _masked() -> MaskedSequencePolicy:
    torch.manual_seed(0)
    return MaskedSequencePolicy()


def test_the_mask_is_refreshed_at_its_interval_and_obeyed() -> None:
    policy, draws = _masked(), generator()
    nlpo = NLPO(learning_rate=0.1, target_update_iterations=3)
    nlpo.setup(policy)
    refreshes, ages = [], []
    for _ in range(7):
        allowed = policy.masker.topk(3).indices  # (prompts, tokens before, 3)
        rollout = policy.write(PROMPTS, draws)
        actions = rollout.actions.T
        allowed_here = allowed[torch.tensor(rollout.observations)[:, None], policy._before(actions)]
        assert rollout.mask is not None
        assert (allowed_here == actions[..., None]).any(-1)[rollout.mask.T].all()
        mask_model, refreshed = policy.masker.clone(), policy.refreshed
        ages.append(nlpo.update(policy, rollout, generator=draws)["mask_age"])
        refreshes.append(policy.refreshed)
        assert torch.equal(policy.masker, mask_model if policy.refreshed == refreshed else policy.actor)
    assert refreshes == [0, 0, 1, 1, 1, 2, 2]
    assert ages == [0, 1, 2, 0, 1, 2, 0]


def test_a_resumed_run_keeps_the_interval() -> None:
    policy, draws = _masked(), generator()
    first, again = NLPO(target_update_iterations=3), NLPO(target_update_iterations=3)
    first.setup(policy)
    for _ in range(2):
        first.update(policy, policy.write([0, 1, 2], draws), generator=draws)
    again.setup(policy)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert policy.refreshed == 0
    again.update(policy, policy.write([0, 1, 2], draws), generator=draws)
    assert policy.refreshed == 1


def test_between_refreshes_it_is_ppo() -> None:
    results = []
    for algorithm in (NLPO(learning_rate=0.1), PPO(learning_rate=0.1)):
        policy = _masked()
        algorithm.setup(policy)
        rollout = policy.write([0, 1, 2] * 4, generator())
        figures = algorithm.update(policy, rollout, generator=generator())
        figures.pop("mask_age", None)
        results.append((figures, policy.actor.detach()))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])
