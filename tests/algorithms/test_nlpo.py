import json

import pytest
import torch

from groundling.algorithms import NLPO, PPO
from groundling.errors import ConfigError
from tests.conftest import MaskedSequencePolicy, SequencePolicy


def _policy() -> MaskedSequencePolicy:
    torch.manual_seed(0)
    return MaskedSequencePolicy()


def test_the_mask_is_refreshed_every_so_many_updates_and_obeyed() -> None:
    policy, generator = _policy(), torch.Generator().manual_seed(0)
    nlpo = NLPO(learning_rate=0.1, target_update_iterations=3)
    nlpo.setup(policy)
    refreshes, ages = [], []
    for _ in range(7):
        allowed = policy.masker.topk(3).indices  # (prompts, tokens before, 3)
        rollout = policy.write([0, 1, 2] * 8, generator)
        before = policy._before(rollout.actions.T)
        kept = (
            allowed[torch.tensor(rollout.observations)[:, None], before] == rollout.actions.T[..., None]
        ).any(-1)
        assert rollout.mask is not None and kept[rollout.mask.T].all()
        mask_model = policy.masker.clone()
        ages.append(nlpo.update(policy, rollout, generator=generator)["mask_age"])
        refreshes.append(policy.refreshed)
        if refreshes[-1:] != refreshes[-2:-1] and policy.refreshed:
            assert torch.equal(policy.masker, policy.actor) and not torch.equal(policy.masker, mask_model)
        elif len(refreshes) > 1:
            assert torch.equal(policy.masker, mask_model)
    assert refreshes == [0, 0, 1, 1, 1, 2, 2]
    assert ages == [0, 1, 2, 0, 1, 2, 0]


def test_a_resumed_run_refreshes_when_it_would_have() -> None:
    policy, generator = _policy(), torch.Generator().manual_seed(0)
    first = NLPO(target_update_iterations=3)
    first.setup(policy)
    for _ in range(2):
        first.update(policy, policy.write([0, 1, 2], generator), generator=generator)
    again = NLPO(target_update_iterations=3)
    again.setup(policy)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert policy.refreshed == 0  # neither setting up nor taking up state refreshes
    again.update(policy, policy.write([0, 1, 2], generator), generator=generator)
    assert policy.refreshed == 1


def test_between_refreshes_it_is_ppo() -> None:
    results = []
    for algorithm in (NLPO(learning_rate=0.1), PPO(learning_rate=0.1)):
        policy = _policy()
        algorithm.setup(policy)
        rollout = policy.write([0, 1, 2] * 4, torch.Generator().manual_seed(0))
        figures = algorithm.update(policy, rollout, generator=torch.Generator().manual_seed(0))
        figures.pop("mask_age", None)
        results.append((figures, policy.actor.detach()))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])


def test_a_policy_without_a_mask_is_told_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"SequencePolicy does not.*policy\.args\.mask_type"):
        NLPO().setup(SequencePolicy())
