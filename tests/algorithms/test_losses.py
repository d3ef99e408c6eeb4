import math

import pytest
import torch

from groundling.algorithms import KLPenalty, Rollout, create, ppo_loss
from groundling.algorithms.losses import kl_divergence, kl_estimate
from groundling.errors import ConfigError
from tests.conftest import SequencePolicy


def _rollout() -> Rollout:
    torch.manual_seed(0)
    return SequencePolicy().write([0, 1, 2, 0, 1, 2], torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("coefficient", "target", "measured", "expected"),
    [  # results of RL4LMs' controller, in float32
        (0.001, None, [1.0, 2.0], [0.001, 0.001]),
        (
            0.2,
            0.5,
            [0.45, 0.55, 0.6, 0.4],
            [0.19799999952316286, 0.19997999999046326, 0.2039796000498712, 0.1999000082920364],
        ),
    ],
)
def test_the_controller_is_that_of_rl4lms(
    coefficient: float, target: float | None, measured: list[float], expected: list[float]
) -> None:
    penalty, rollout = KLPenalty(coefficient, target), _rollout()
    for value, after in zip(measured, expected, strict=True):
        rollout.kl = torch.full_like(rollout.rewards, value)
        before = penalty.coefficient
        figures = penalty.adapt(rollout)
        assert figures == {"kl_mean": pytest.approx(value), "kl_coefficient": before}
        assert penalty.coefficient == pytest.approx(after, abs=1e-6)


def test_masked_steps_are_neither_penalised_nor_measured() -> None:
    rollout = _rollout()
    rollout.rewards = torch.tensor([[0.0, 1.0], [2.0, 9.0]])
    rollout.mask = torch.tensor([[True, True], [True, False]])
    rollout.kl = torch.tensor([[0.5, -0.25], [0.2, 50.0]])
    penalty = KLPenalty(2.0, target=1.0)
    assert torch.allclose(penalty.rewards(rollout), torch.tensor([[-1.0, 1.5], [1.6, 0.0]]))
    assert penalty.adapt(rollout)["kl_mean"] == pytest.approx(0.15)
    assert penalty.coefficient == pytest.approx(2.0 * 0.98)  # the error of -0.85 is clipped to -0.2


def test_a_penalty_without_a_reference_is_an_error() -> None:
    rollout = _rollout()
    rollout.kl = None
    for algorithm in ("ppo", "a2c", "trpo", "rloo", "grpo", "reinforce_pp"):
        made = create(algorithm, kl_coefficient=0.1)
        policy = SequencePolicy()
        made.setup(policy)
        with pytest.raises(ConfigError, match="reference"):
            made.update(policy, rollout, generator=torch.Generator())
    assert KLPenalty(0.0).adapt(rollout) == {}


def test_normalised_rewards_include_the_penalty() -> None:
    rollout = _rollout()
    ppo = create("ppo", kl_coefficient=0.5, normalize_rewards=True)
    assert rollout.kl is not None and rollout.mask is not None
    raw = (rollout.rewards - 0.5 * rollout.kl)[rollout.mask]
    rewards = ppo.rewards(rollout)
    assert torch.allclose(rewards[rollout.mask], (raw - raw.mean()) / raw.std(correction=0), atol=1e-5)
    assert not rewards[~rollout.mask].any()
    # Values at truncations have these units, and only count where the mask is set.
    rollout.truncation_values = torch.full_like(rollout.rewards, 3.0)
    torch.testing.assert_close(ppo.rewards(rollout) - rewards, 3.0 * rollout.mask)


def test_rounding_errors_of_the_penalty_are_not_scaled_up() -> None:
    rollout = _rollout()
    assert rollout.kl is not None
    rollout.rewards, noise = torch.zeros_like(rollout.rewards), torch.randn_like(rollout.kl)
    ppo = create("ppo", kl_coefficient=0.5, normalize_rewards=True)
    rollout.kl = 1e-7 * noise
    assert not ppo.rewards(rollout).any()
    rollout.kl = 1e-4 * noise
    assert ppo.rewards(rollout)[rollout.mask].std(correction=0) == pytest.approx(1, abs=1e-3)


def test_the_estimate_is_unbiased_and_the_divergence_exact() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(4, 6).log_softmax(-1), torch.randn(4, 6).log_softmax(-1)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=p), torch.distributions.Categorical(logits=q)
    )
    assert torch.allclose(kl_divergence(p, q), expected, atol=1e-6)
    assert torch.allclose((p.exp() * kl_estimate(p - q)).sum(-1), expected, atol=1e-5)
    assert (kl_estimate(p - q) >= 0).all()
    p[:, 2] = q[:, 2] = -torch.inf  # impossible
    assert kl_divergence(p.log_softmax(-1), q.log_softmax(-1)).isfinite().all()


def _loss(log_ratio: float, advantage: float, **options: float | None):
    zero = torch.zeros(1)
    return ppo_loss(torch.tensor([log_ratio]), zero, torch.tensor([advantage]), zero, zero, zero, zero, **options)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, 1.0, -1.2),  # good action that is already much more likely: clipped
        (0.5, 1.0, -0.5),  # good action that became less likely: not clipped
        (1.5, -1.0, 1.5),  # bad action that became more likely: not clipped
        (0.5, -1.0, 0.8),  # bad action that is already much less likely: clipped
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
    with pytest.raises(ValueError, match="same shape"):
        ppo_loss(row, row, row, column, row, row, row)
