import pytest
import torch

from groundling.algorithms import generalized_advantage


def test_hand_computed_example_with_an_episode_end_in_the_middle() -> None:
    rewards = torch.tensor([[1.0], [0.0], [2.0]])
    values = torch.tensor([[0.5], [0.4], [0.3]])
    dones = torch.tensor([[False], [True], [False]])
    advantages, returns = generalized_advantage(rewards, values, dones, torch.tensor([0.2]), 0.9, 0.8)
    last = 2.0 + 0.9 * 0.2 - 0.3
    middle = 0.0 - 0.4  # the episode ended: neither value nor advantage of what follows counts
    first = 1.0 + 0.9 * 0.4 - 0.5 + 0.9 * 0.8 * middle
    assert torch.allclose(advantages[:, 0], torch.tensor([first, middle, last]))
    assert torch.allclose(returns, advantages + values)


def test_lambda_one_is_the_discounted_return_and_lambda_zero_the_one_step_error() -> None:
    torch.manual_seed(0)
    rewards, values, last = torch.randn(6, 3), torch.randn(6, 3), torch.randn(3)
    dones = torch.zeros(6, 3, dtype=torch.bool)
    _, returns = generalized_advantage(rewards, values, dones, last, 0.95, 1.0)
    expected = last
    for t in reversed(range(6)):
        expected = rewards[t] + 0.95 * expected
    assert torch.allclose(returns[0], expected, atol=1e-5)
    advantages, _ = generalized_advantage(rewards, values, dones, last, 0.95, 0.0)
    following = torch.cat([values[1:], last[None]])
    assert torch.allclose(advantages, rewards + 0.95 * following - values, atol=1e-6)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        generalized_advantage(
            torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, 1), torch.zeros(2), 0.9, 0.9
        )
    with pytest.raises(ValueError, match="last_value"):
        generalized_advantage(
            torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(2, 1), 0.9, 0.9
        )
