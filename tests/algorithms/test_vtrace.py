import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundling.algorithms import generalized_advantage
from groundling.algorithms.advantages import v_trace


def _slowly(ratios, rewards, values, dones, last_value, gamma, rho_bar, c_bar):
    """Equation 1 of arXiv 1802.01561 for one env: for each step a sum over all later steps."""
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


def test_has_no_gradient_and_checks_shapes() -> None:
    values = torch.ones(3, 2, requires_grad=True)
    targets, advantages = v_trace(values * 0, torch.ones(3, 2), values, torch.zeros(3, 2), torch.ones(2), math.exp(-1))
    assert not targets.requires_grad and not advantages.requires_grad
    with pytest.raises(ValueError, match="one shape"):
        v_trace(torch.ones(3, 2), torch.ones(3, 2), values, torch.zeros(3, 2), torch.ones(3), 0.9)
