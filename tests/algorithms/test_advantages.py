import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundling.algorithms import Rollout, create, generalized_advantage
from groundling.algorithms.advantages import (
    explained_variance,
    group_relative,
    leave_one_out,
    returns_to_go,
    standardise,
    v_trace,
    varied_groups,
)
from groundling.algorithms.rollout import Batch
from groundling.errors import ConfigError
from groundling.policies import ActionScoringPolicy
from groundling.worlds.text.world import TextWorld
from tests.algorithms.rollouts import generator, texts


def test_hand_computed_example_with_an_episode_end_in_the_middle() -> None:
    rewards = torch.tensor([[1.0], [0.0], [2.0]])
    values = torch.tensor([[0.5], [0.4], [0.3]])
    dones = torch.tensor([[False], [True], [False]])
    advantages, returns = generalized_advantage(rewards, values, dones, torch.tensor([0.2]), 0.9, 0.8)
    last = 2.0 + 0.9 * 0.2 - 0.3
    middle = 0.0 - 0.4  # the episode ended, so later values and advantages do not count
    first = 1.0 + 0.9 * 0.4 - 0.5 + 0.9 * 0.8 * middle
    assert torch.allclose(advantages[:, 0], torch.tensor([first, middle, last]))
    assert torch.allclose(returns, advantages + values)


def test_advantages_are_those_of_rl4lms() -> None:
    """Two rollouts of RL4LMs' buffer, with gamma 0.99 and lambda 0.95, in float32."""
    rewards = torch.tensor(
        [
            [0.067, 0.302, -0.634, -0.363, 0.177, -0.402, -1.63, 0.463, -0.907],
            [1.764, 0.4, 0.979, 0.95, -0.151, 0.144, 1.454, 0.761, 0.122],
        ]
    ).T
    values = torch.tensor(
        [
            [-0.672, -0.36, -0.813, -1.726, 0.129, 1.139, -1.235, 0.402, -0.685],
            [2.241, 1.868, -0.977, -0.103, 0.411, 0.444, 0.334, 1.494, -0.205],
        ]
    ).T
    dones = torch.tensor([[t == 3 for t in range(9)], [t in (2, 4, 8) for t in range(9)]]).T
    expected = torch.tensor(
        [
            [0.029007, -0.375962, -0.247839, 1.363, -2.782741, -4.208773, -1.536548, -1.636925, -1.08429],
            [0.812147, -0.595612, 1.956, 0.931329, -0.562, 1.919225, 2.008044, -0.628407, 0.327],
        ]
    ).T
    last_values = torch.tensor([-0.871, 0.0])
    advantages, _ = generalized_advantage(rewards, values, dones, last_values, 0.99, 0.95)
    assert torch.allclose(advantages, expected, atol=2e-6)


def _texts(returns: list[float], groups: list[int] | None) -> Rollout:
    """Return texts of three steps (two in odd columns), whose rewards are at the end."""
    zero = torch.zeros(3, len(returns))
    mask, dones, rewards = zero == 0, zero != 0, zero.clone()
    mask[2, 1::2] = False
    for column, value in enumerate(returns):
        dones[2 - column % 2, column] = True
        rewards[2 - column % 2, column] = value
    return Rollout(
        list(range(len(returns))),
        zero.long(),
        zero,
        zero,
        rewards,
        dones,
        zero[0],
        [],
        sequences=True,
        mask=mask,
        groups=None if groups is None else torch.tensor(groups),
    )


def test_leave_one_out_by_hand() -> None:
    rollout = _texts([1.0, 2.0, 6.0, 5.0, 9.0], groups=[7, 7, 7, 3, 3])
    advantages = leave_one_out(rollout, returns_to_go(rollout.rewards, rollout.dones, 1.0))
    expected = [1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2, 5 - 9, 9 - 5]
    assert torch.allclose(advantages[:2], torch.tensor(expected).expand(2, 5))
    assert torch.allclose(advantages[2, ::2], torch.tensor(expected[::2]))
    one_group = _texts([1.0, 2.0, 6.0], groups=None)
    advantages = leave_one_out(one_group, returns_to_go(one_group.rewards, one_group.dones, 1.0))
    assert torch.allclose(advantages[0], torch.tensor(expected[:3]))


def test_group_relative_by_hand() -> None:
    rollout = _texts([1.0, 2.0, 6.0, 5.0, 9.0], groups=[7, 7, 7, 3, 3])
    returns = returns_to_go(rollout.rewards, rollout.dones, 1.0)
    deviations = [7**0.5] * 3 + [8**0.5] * 2  # standard deviations of 1, 2, 6 and of 5, 9
    centred = [1 - 3.0, 2 - 3.0, 6 - 3.0, 5 - 7.0, 9 - 7.0]
    expected = [c / (d + 1e-4) for c, d in zip(centred, deviations, strict=True)]
    assert torch.allclose(group_relative(rollout, returns)[0], torch.tensor(expected))
    assert torch.allclose(group_relative(rollout, returns, scale="none")[0], torch.tensor(centred))


def test_the_groups_with_the_largest_variance_are_selected() -> None:
    rollout = _texts([1.0, 2.0, 6.0, 5.0, 9.0, 4.0, 4.0], groups=[7, 7, 7, 3, 3, 5, 5])
    returns = returns_to_go(rollout.rewards, rollout.dones, 1.0)
    for share, kept in ((0.1, [1, 1, 1, 0, 0, 0, 0]), (0.4, [1, 1, 1, 0, 0, 0, 0]), (0.7, [1, 1, 1, 1, 1, 0, 0])):
        assert varied_groups(rollout, returns, share)[0].int().tolist() == kept
    policy, written = texts()
    made = create("grpo", group_share=0.4, minibatch_size=1000)
    batch = Batch.of(policy, written, made.targets(written))
    (chosen,) = made.minibatches(batch, generator())
    assert written.groups is not None and len(chosen) == 8 and len(written.groups[chosen].unique()) == 1
    with pytest.raises(ConfigError, match="both select steps: set only one"):
        create("grpo", group_share=0.4, advantage_share=0.5)
    refused = made.accepts(ActionScoringPolicy, {}, TextWorld.offers)
    assert refused is not None and "needs several groups of episodes: set world.group_size" in refused


def test_cut_episodes_of_envs_are_compared_by_their_returns_so_far() -> None:
    rewards = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 3.0], [8.0, 0.0]])
    dones = torch.tensor([[False, False], [True, False], [False, True], [False, False]])
    zero = torch.zeros(4, 2)
    rollout = Rollout(list(range(8)), zero.long(), zero, zero, rewards, dones, zero[0], [])
    returns = returns_to_go(rewards, dones, 0.5)
    assert torch.allclose(returns, torch.tensor([[2.0, 0.75], [2.0, 1.5], [8.0, 3.0], [8.0, 0.0]]))
    # There are four episodes, two of which are truncated, with returns 2 and 8, 0.75 and 0.
    baselines = [(8 + 0.75 + 0) / 3, (2 + 0.75 + 0) / 3, (2 + 8 + 0) / 3, (2 + 8 + 0.75) / 3]
    which = torch.tensor([[0, 2], [0, 2], [1, 2], [1, 3]])
    assert torch.allclose(leave_one_out(rollout, returns), returns - torch.tensor(baselines)[which])


def test_parts_of_the_reward_are_logged_unless_env_is_the_only_one() -> None:
    ones = torch.ones(4, 2)

    def logged(*names: str) -> dict[str, float]:
        parts = dict.fromkeys(names, 3 * ones)
        return Rollout(
            list(range(8)), ones.long(), ones, ones, ones, ones.bool(), ones[0], [], parts=parts
        ).part_means()

    assert logged("env") == logged() == {}
    assert logged("reward_model") == {"reward/reward_model": 3.0}
    assert logged("env", "count") == {"reward/env": 3.0, "reward/count": 3.0}


def test_a_group_of_one_text_is_an_error() -> None:
    for groups in ([1, 1, 2], [3]):
        rollout = _texts([1.0] * len(groups), groups)
        for advantages in (leave_one_out, group_relative):
            with pytest.raises(ConfigError, match=r"world\.num_texts and texts_per_prompt to at least 2"):
                advantages(rollout, rollout.rewards)


def test_standardised_under_the_mask() -> None:
    x, mask = torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False])
    assert torch.allclose(standardise(x, mask), torch.tensor([-1.0, 1.0, 0.0]))
    assert torch.allclose(standardise(x[:2]), torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize("value", [0.7, -0.1, 18.7])
@pytest.mark.parametrize("count", [64, 640, 4095])
def test_many_equal_numbers_have_no_advantages(value: float, count: int) -> None:
    x, mask = torch.full((count,), value), torch.arange(count) % 3 > 0
    assert not standardise(x).any() and not standardise(x, mask).any()
    alone = torch.where(mask, x, 5.0)
    assert not standardise(alone, mask).any() and standardise(alone).any()
    many = _texts([value] * count, groups=[1] * (count - 2) + [2] * 2)
    returns = returns_to_go(many.rewards, many.dones, 1.0)
    assert not group_relative(many, returns).any()


def test_no_variance_of_constant_returns_is_explained() -> None:
    values = torch.rand(500, generator=torch.Generator().manual_seed(0))
    returns = (1e-7 - values) + values  # as in R = Â + V
    assert returns.unique().numel() > 1
    assert explained_variance(values, returns) == 0.0
    diverged = torch.tensor([1e4, -1e4, 1e4, -1e4])
    assert explained_variance(diverged, 4e-7 * diverged) < -1e12


def test_explained_variance_under_the_mask() -> None:
    returns, weights = torch.tensor([0.0, 2.0, 50.0]), torch.tensor([1.0, 1.0, 0.0])
    assert explained_variance(torch.tensor([0.0, 2.0, 7.0]), returns, weights) == 1.0
    assert explained_variance(torch.tensor([1.0, 1.0, 7.0]), returns, weights) == 0.0
    assert explained_variance(torch.tensor([0.5, 1.5, 7.0]), returns, weights) == pytest.approx(0.75)


def _slowly(ratios, rewards, values, dones, last_value, gamma, rho_bar, c_bar):
    """Compute equation 1 of arXiv 1802.01561 for one env, with a sum over all later steps for each step."""
    num_steps = len(rewards)
    following = [*values[1:], last_value]
    targets = []
    for s in range(num_steps):
        target, discount, traces = values[s], 1.0, 1.0
        for t in range(s, num_steps):
            after = 0.0 if dones[t] else following[t]
            target += discount * traces * min(rho_bar, ratios[t]) * (rewards[t] + gamma * after - values[t])
            if dones[t]:
                break
            discount *= gamma
            traces *= min(c_bar, ratios[t])
        targets.append(target)
    advantages = []
    for s in range(num_steps):
        later = 0.0 if dones[s] else [*targets[1:], last_value][s]
        advantages.append(min(rho_bar, ratios[s]) * (rewards[s] + gamma * later - values[s]))
    return targets, advantages


_numbers = st.floats(-10, 10, width=32)


@given(st.data(), st.integers(1, 12), st.floats(0, 1), st.floats(0.1, 3), st.floats(0.1, 3))
def test_is_the_sum_of_the_paper(
    data: st.DataObject, num_steps: int, gamma: float, rho_bar: float, c_bar: float
) -> None:
    def column(numbers: st.SearchStrategy) -> list:
        return data.draw(st.lists(numbers, min_size=num_steps, max_size=num_steps))

    ratios, rewards, values = column(st.floats(0.05, 20)), column(_numbers), column(_numbers)
    dones, last_value = column(st.booleans()), data.draw(_numbers)
    expected = _slowly(ratios, rewards, values, dones, last_value, gamma, rho_bar, c_bar)
    both = [torch.tensor(x, dtype=torch.float64)[:, None] for x in (ratios, rewards, values)]
    got = v_trace(
        both[0].log(),
        both[1],
        both[2],
        torch.tensor(dones)[:, None],
        torch.tensor([last_value], dtype=torch.float64),
        gamma,
        rho_bar,
        c_bar,
    )
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine[:, 0].numpy(), theirs, rtol=1e-6, atol=1e-6)


def test_on_policy_it_is_the_return_that_gae_gives_with_lambda_1() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 20, 6, generator=generator, dtype=torch.float64)
    last, dones = torch.randn(6, generator=generator, dtype=torch.float64), torch.rand(20, 6) < 0.1
    targets, advantages = v_trace(torch.zeros(20, 6).double(), rewards, values, dones, last, 0.97)
    expected, returns = generalized_advantage(rewards, values, dones, last, 0.97, 1.0)
    torch.testing.assert_close(targets, returns)
    torch.testing.assert_close(advantages, expected)
