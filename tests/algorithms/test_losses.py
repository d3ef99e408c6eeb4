import math

import pytest
import torch

from groundling.algorithms import ppo_loss


def _loss(log_ratio: float, advantage: float, **options: float | None):
    zero = torch.zeros(1)
    return ppo_loss(torch.tensor([log_ratio]), zero, torch.tensor([advantage]), zero, zero, zero, zero, **options)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, 1.0, -1.2),  # good action, already much likelier: clipped
        (0.5, 1.0, -0.5),  # good action that became less likely: not clipped
        (1.5, -1.0, 1.5),  # bad action that became likelier: not clipped
        (0.5, -1.0, 0.8),  # bad action, already much less likely: clipped
    ],
)
def test_policy_term_is_the_clipped_surrogate(ratio: float, advantage: float, expected: float) -> None:
    assert _loss(math.log(ratio), advantage).policy.item() == pytest.approx(expected)


def test_value_term_takes_the_worse_of_the_clipped_and_the_plain_error() -> None:
    zero = torch.zeros(1)
    value, old, target = torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0])
    clipped = ppo_loss(zero, zero, zero, value, old, target, zero, value_clip_range=0.2)
    assert clipped.value.item() == pytest.approx(0.5 * 0.8**2)
    assert ppo_loss(zero, zero, zero, value, old, target, zero, value_clip_range=None).value.item() == 0


def test_total_is_the_weighted_sum() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(5) for _ in range(7)]
    loss = ppo_loss(*parts, value_coefficient=0.3, entropy_coefficient=0.07)
    assert torch.allclose(loss.total, loss.policy + 0.3 * loss.value - 0.07 * loss.entropy)


def test_masked_elements_have_no_influence() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(4, 3) for _ in range(7)]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
    spoilt = [torch.where(mask.bool(), p, torch.full_like(p, 50.0)) for p in parts]
    kept = [p[mask.bool()] for p in parts]
    assert torch.allclose(ppo_loss(*spoilt, mask=mask).total, ppo_loss(*kept).total, atol=1e-6)


def test_a_column_of_values_is_refused_instead_of_broadcast() -> None:
    row, column = torch.zeros(4), torch.zeros(4, 1)  # the original GLAM regressed each value on all returns
    with pytest.raises(ValueError, match="one shape"):
        ppo_loss(row, row, row, column, row, row, row)
