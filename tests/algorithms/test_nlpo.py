import json

import pytest
import torch

from groundling.algorithms import NLPO, PPO
from groundling.errors import ConfigError
from tests.algorithms.rollouts import PROMPTS, generator
from tests.conftest import MaskedSequencePolicy, SequencePolicy


def _policy() -> MaskedSequencePolicy:
    torch.manual_seed(0)
    return MaskedSequencePolicy()


def test_the_mask_is_refreshed_at_its_interval_and_obeyed() -> None:
    policy, draws = _policy(), generator()
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
    policy, draws = _policy(), generator()
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
        policy = _policy()
        algorithm.setup(policy)
        rollout = policy.write([0, 1, 2] * 4, generator())
        figures = algorithm.update(policy, rollout, generator=generator())
        figures.pop("mask_age", None)
        results.append((figures, policy.actor.detach()))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])


def test_a_policy_without_a_mask_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SequencePolicy does not.*policy\.args\.mask_type"):
        NLPO().setup(SequencePolicy())
