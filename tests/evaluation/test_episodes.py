import pytest

from groundling.envs.seeds import held_out_seed
from groundling.envs.vector import TextVectorEnv
from groundling.evaluation.episodes import (
    held_out_seed_of,
    play,
    policy_player,
    summarise,
    wilson_interval,
)
from groundling.policies import RandomPolicy
from tests.conftest import Corridor, TablePolicy


def _envs(num_envs: int) -> TextVectorEnv:
    return TextVectorEnv(Corridor, num_envs, ["left", "right", "stay"], seed_of=held_out_seed_of(num_envs))


@pytest.mark.parametrize("num_envs", [1, 3, 10, 16])
def test_the_episodes_played_do_not_depend_on_the_number_of_envs(num_envs: int) -> None:
    with policy_player(TablePolicy(), deterministic=True, seed=0) as player:
        episodes = play(player, _envs(num_envs), 10)
    assert [e.seed for e in episodes] == [held_out_seed(k) for k in range(10)]


def test_results_of_a_deterministic_player_do_not_depend_on_the_number_of_envs() -> None:
    with policy_player(TablePolicy(), True, 0) as player:
        results = [[(e.mission, e.actions) for e in play(player, _envs(n), 20)] for n in (1, 7)]
    assert results[0] == results[1]


def test_random_player_finds_the_corridors_chance_level() -> None:
    with policy_player(RandomPolicy(), False, 0) as player:
        summary = summarise(play(player, _envs(16), 400))
    assert summary.episodes == 400
    assert 0.35 < summary.success_rate < 0.6
    assert summary.success_low < summary.success_rate < summary.success_high


def test_wilson_interval_against_published_values() -> None:
    # Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29, score method without continuity correction.
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (successes, count), expected in published.items():
        assert wilson_interval(successes, count) == pytest.approx(expected, abs=5e-5)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2)
