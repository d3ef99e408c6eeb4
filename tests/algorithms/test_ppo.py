import copy
import math

import pytest
import torch

from groundling.algorithms import PPO, Rollout
from groundling.algorithms.rollout import micro_batches
from groundling.envs.seeds import training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from groundling.policies.policy import Policy, Work
from groundling.runtime.processes import Processes
from groundling.worlds.text.collect import EnvCollector
from tests.conftest import Corridor, TablePolicy
from tests.thorough import one_in


def _envs(num_envs: int = 8) -> TextVectorEnv:
    envs = TextVectorEnv(
        Corridor, num_envs, ["left", "right", "stay"], seed_of=lambda i, k: training_seed(0, i, k)
    )
    envs.reset()
    return envs


def _policy_and_rollout() -> tuple[Policy, Rollout]:
    torch.manual_seed(0)
    policy = TablePolicy()
    rollout, _ = EnvCollector(_envs(), 16).collect(policy, generator=torch.Generator().manual_seed(0))
    return policy, rollout


def _learn(policy: Policy, rollout: Rollout, **options: object) -> tuple[Policy, dict[str, float]]:
    learner = copy.deepcopy(policy)
    ppo = PPO(**{"learning_rate": 1e-2, "minibatch_size": 32, **options})
    ppo.setup(learner)
    return learner, ppo.update(learner, rollout, generator=torch.Generator().manual_seed(1))


def _difference(a: Policy, b: Policy) -> float:
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_learns_the_corridor() -> None:
    torch.manual_seed(0)
    policy, collector, ppo = (
        TablePolicy(),
        EnvCollector(_envs(16), 20),
        PPO(learning_rate=3e-2, normalize_advantages=True),
    )
    ppo.setup(policy)
    generator = torch.Generator().manual_seed(0)
    rates = []
    for _ in range(15):
        rollout, episodes = collector.collect(policy, generator=generator)
        ppo.update(policy, rollout, generator=generator)
        rates.append(sum(e.success for e in episodes) / len(episodes))
    assert rates[0] < 0.7
    assert rates[-1] > 0.95


@pytest.mark.parametrize("micro", one_in(2, [1, 4, 7, 16]))
def test_accumulated_micro_batches_give_the_same_step_as_the_whole_minibatch(micro: int) -> None:
    policy, rollout = _policy_and_rollout()
    whole, figures = _learn(policy, rollout, minibatch_size=16)
    pieces, same_figures = _learn(policy, rollout, minibatch_size=16, micro_batch_size=micro)
    assert _difference(whole, policy) > 1e-3
    assert _difference(whole, pieces) < 1e-5
    assert figures == pytest.approx(same_figures, rel=1e-4, abs=1e-5)


def test_first_minibatch_sees_the_old_policy() -> None:
    policy, rollout = _policy_and_rollout()
    _, figures = _learn(policy, rollout, minibatch_size=len(rollout), epochs=1)
    assert figures["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert figures["clip_fraction"] == 0


def test_no_step_is_taken_on_the_minibatch_that_is_too_far() -> None:
    policy, rollout = _policy_and_rollout()
    whole = {"minibatch_size": len(rollout), "learning_rate": 1.0}
    once, _ = _learn(policy, rollout, epochs=1, **whole)
    stopped, figures = _learn(policy, rollout, epochs=9, target_kl=0.01, **whole)
    assert figures["approx_kl"] > 0.01  # the mean of what was looked at, the last one too
    assert _difference(once, stopped) == 0 < _difference(once, policy)


def test_target_kl_stops_early_and_the_linear_schedule_reaches_zero() -> None:
    policy, rollout = _policy_and_rollout()
    _, many = _learn(policy, rollout, epochs=20, learning_rate=0.1)
    _, few = _learn(policy, rollout, epochs=20, learning_rate=0.1, target_kl=0.01)
    assert few["approx_kl"] < many["approx_kl"]
    ppo = PPO(learning_rate=1.0, learning_rate_schedule="linear")
    frozen = copy.deepcopy(policy)
    ppo.setup(frozen)
    ppo.update(frozen, rollout, generator=torch.Generator(), remaining=0.0)
    assert _difference(frozen, policy) == 0


def test_nan_stops_with_advice_and_leaves_the_weights_alone() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.rewards[3, 2] = math.nan
    ppo = PPO(minibatch_size=len(rollout))
    ppo.setup(policy)
    before = copy.deepcopy(policy)
    with pytest.raises(RunError, match="learning_rate"):
        ppo.update(policy, rollout, generator=torch.Generator())
    assert _difference(before, policy) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": math.nan},
        {"adam_beta1": 1.0},
        {"value_clip_range": -1.0},
        {"gamma": 1.5},
        {"learning_rate": 0},
        {"micro_batch_size": 65},
        {"epochs": 0},
        {"gae_lambda": -0.1},
    ],
)
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        PPO(**options)


def test_micro_batches_partition_the_minibatch_and_group_like_work() -> None:
    indices = torch.randperm(23)
    costs = [(7 * i) % 10 for i in range(23)]
    pieces = list(micro_batches(indices, 5, [Work(cost, i) for i, cost in enumerate(costs)], Processes()))
    assert sorted(torch.cat(pieces).tolist()) == list(range(23))
    assert all(len(p) <= 5 for p in pieces)
    flat = [costs[i] for p in pieces for i in p.tolist()]
    assert flat == sorted(flat)
    assert torch.equal(torch.cat(list(micro_batches(indices, 5, None, Processes()))), indices)
