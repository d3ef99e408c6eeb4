import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groundling.errors import ConfigError
from groundling.judges.reward_models.reward_model import QUANTILE_LEVELS, Normalization
from groundling.rewards.intrinsic import MotifReward, extrinsic_reward, intrinsic_reward

NORMALIZATION = Normalization(
    0.5, 4.0, tuple(2 * q - 1 for q in QUANTILE_LEVELS)
)  # median 0, spread -0.9 to 0.9


def test_intrinsic_reward_by_hand() -> None:
    raw = torch.tensor([[2.5, 4.5, 0.3], [0.5, -3.5, 1.5]])
    counts = torch.tensor([[1.0, 2.0, 1.0], [1.0, 1.0, 3.0]])
    # Normalised with mean 0.5 and deviation 2: 1, 2, -0.1; 0, -2, 0.5. Above -0.2 remain all but -2.
    expected = [[1.0, 2 / 8, -0.1], [0.0, 0.0, 0.5 / 27]]
    found = intrinsic_reward(raw, counts, mean=0.5, variance=4.0, threshold=-0.2, count_exponent=3)
    assert torch.allclose(found, torch.tensor(expected))
    # What equals the threshold is cut off.
    equal = intrinsic_reward(torch.tensor([1.0, 1.5]), torch.ones(2), threshold=1.0)
    assert equal.tolist() == [0.0, 1.5]
    # β = 0: repetition costs nothing; β = 1: 1 / n.
    for exponent, value in ((0, 6.0), (1, 2.0), (0.5, 6 / math.sqrt(3))):
        found = intrinsic_reward(torch.tensor([6.0]), torch.tensor([3]), count_exponent=exponent)
        assert found.item() == pytest.approx(value)


def test_the_env_s_reward_is_scaled_and_then_clipped() -> None:
    env = torch.tensor([-0.01, 50.0, 99.0, 150.0, -1000.0])
    assert extrinsic_reward(env).tolist() == pytest.approx([-0.001, 5.0, 9.9, 10.0, -10.0])


def test_both_parts_by_hand() -> None:
    env, raw = torch.tensor([50.0, 1000.0, 0.0]), torch.tensor([4.5, 400.5, 4.5])
    counts = torch.tensor([1.0, 1.0, 2.0])
    # Intrinsic: 2; 200, neither clipped nor scaled; 2 / 8.
    score = MotifReward()
    expected = [0.1 * 5 + 0.1 * 2, 0.1 * 10 + 0.1 * 200, 0.1 * 0.25]
    assert score(env, raw, counts, NORMALIZATION).tolist() == pytest.approx(expected)
    staircase = MotifReward(extrinsic_coefficient=10.0)
    assert staircase(env, raw, counts, NORMALIZATION)[0].item() == pytest.approx(50 + 0.2)
    intrinsic_only = MotifReward(extrinsic_coefficient=0)
    assert intrinsic_only(env, raw, counts, NORMALIZATION).tolist() == pytest.approx([0.2, 20.0, 0.025])
    extrinsic_only = MotifReward(intrinsic_coefficient=0)
    assert extrinsic_only(env).tolist() == pytest.approx([0.5, 1.0, 0.0])
    assert not extrinsic_only.needs_reward_model


@pytest.mark.parametrize("normalize", [True, False])
def test_the_threshold_is_the_same_message_with_and_without_normalisation(normalize: bool) -> None:
    raw = torch.tensor([-3.0, 0.49, 0.51, 1.69, 1.71])  # quantile 0.8 is 0.6 normalised, 1.7 raw
    counts = torch.ones(5)
    for quantile, kept in ((0, 5), (0.5, 3), (0.8, 1), (0.55, 2)):  # 0.55: 0.7 raw
        found = MotifReward(threshold_quantile=quantile, normalize=normalize).intrinsic(
            raw, counts, NORMALIZATION
        )
        assert (found != 0).sum() == kept
        assert torch.allclose(found[-1], torch.tensor(0.605 if normalize else 1.71))


def test_labels_need_no_normalisation() -> None:
    labels, counts = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 2.0])
    oni = MotifReward(intrinsic_coefficient=0.4, normalize=False, threshold_quantile=0)
    assert oni(torch.zeros(3), labels, counts).tolist() == pytest.approx([0, 0.4, 0.05])
    with pytest.raises(ConfigError, match="normalize=false"):
        MotifReward()(torch.zeros(3), labels, counts)
    with pytest.raises(ConfigError, match="reward model"):
        MotifReward()(torch.zeros(3))


@pytest.mark.parametrize(
    "options",
    [
        {"threshold_quantile": -0.5},
        {"threshold_quantile": 1},
        {"reward_clip": 0},
        {"count_exponent": math.nan},
    ],
)
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        MotifReward(**options)


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.integers(1, 9), st.floats(-500, 500)), min_size=1, max_size=20),
    st.sampled_from([0, *QUANTILE_LEVELS]),
)
@settings(max_examples=50, deadline=None)
def test_against_the_formula_in_plain_numbers(steps: list[tuple[float, int, float]], quantile: float) -> None:
    expected = []
    for raw, count, env in steps:
        normal = (raw - 0.5) / 2.0
        epsilon = 2 * quantile - 1 if quantile else -math.inf
        intrinsic = (normal if normal > epsilon + 1e-7 else 0.0) / count**3
        expected.append(0.1 * max(-10.0, min(10.0, 0.1 * env)) + 0.1 * intrinsic)
        if abs(normal - epsilon) < 1e-5:
            return  # float32 may say otherwise
    raw, counts, env = (torch.tensor(column, dtype=torch.float32) for column in zip(*steps, strict=True))
    found = MotifReward(threshold_quantile=quantile)(env, raw, counts, NORMALIZATION)
    assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
