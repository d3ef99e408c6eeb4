import numpy as np
import pytest

from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import TextEnvMaker
from groundling.envs.seeds import training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from tests.conftest import Corridor


def _make(num_envs: int = 3, history: int = 3, run_seed: int = 0) -> TextVectorEnv:
    return TextVectorEnv(
        Corridor,
        num_envs,
        ["left", "right", "stay", "dance"],
        seed_of=lambda i, k: training_seed(run_seed, i, k),
        history=history,
    )


def test_envs_made_by_their_id_have_a_runs_episodes() -> None:
    made = TextVectorEnv.make("BabyAI-GoToRedBallNoDists-v0", 2, seed=3, history=1)
    maker = TextEnvMaker.of("BabyAI-GoToRedBallNoDists-v0")
    by_hand = TextVectorEnv(maker, 2, ACTIONS["english"], lambda i, k: training_seed(3, i, k), history=1)
    assert [o.descriptions for o in made.reset()] == [o.descriptions for o in by_hand.reset()]
    assert made.actions == ACTIONS["english"]
    other = TextVectorEnv.make("BabyAI-GoToRedBallNoDists-v0", 2, seed=4, language="french", history=1)
    assert [o.goal for o in other.reset()] == ["aller à la balle rouge"] * 2
    with pytest.raises(ConfigError, match="BabyAI-GoToRedBal"):
        TextVectorEnv.make("BabyAI-GoToRedBal-v0", 2)


def test_history_holds_the_last_observations_and_the_actions_between_them() -> None:
    envs = _make(num_envs=1, history=3)
    first = envs.reset()[0]
    assert len(first.descriptions) == 1 and first.past_actions == ()
    seen = [first.descriptions[-1]]
    for action in (2, 2, 2, 2):
        observation = envs.step([action]).observations[0]
        seen.append(observation.descriptions[-1])
        assert observation.descriptions == tuple(seen[-3:])
        assert observation.past_actions == ("stay",) * (len(observation.descriptions) - 1)
    assert observation.actions == ("left", "right", "stay", "dance")


def test_ended_episodes_are_reset_and_returned() -> None:
    envs = _make(num_envs=2)
    envs.reset()
    for t in range(1, 13):
        step = envs.step([2, 3])  # "dance" is beyond the env's last action, "stay"
        assert step.truncated.tolist() == [t == 12, t == 12]
    assert [e.env_index for e in step.episodes] == [0, 1]
    for i, episode in enumerate(step.episodes):
        assert episode.seed == training_seed(0, i, 0)
        assert episode.actions == (2 + i,) * 12 and not episode.success and episode.episode_return == 0
        assert len(step.observations[i].descriptions) == 1  # that of the next episode's first step
        assert len(step.final_observations[i].descriptions) == 3


def test_an_env_without_an_action_stays_as_it_is() -> None:
    envs = _make(num_envs=2)
    before = envs.reset()
    step = envs.step([2, None])
    assert step.observations[1] == before[1]


def _play(envs: TextVectorEnv, steps: int, seed: int) -> list[object]:
    rng, rollout = np.random.default_rng(seed), []
    for _ in range(steps):
        step = envs.step(rng.integers(0, 3, envs.num_envs).tolist())
        rollout.append((step.observations, step.rewards.tolist(), step.terminated.tolist(), step.episodes))
    return rollout


def test_the_step_limit_truncates_episodes() -> None:
    envs = _make(num_envs=2)
    envs.step_limit = 3
    envs.reset()
    steps = [envs.step([2, 2]) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [False, False], [True, True]]
    assert [(e.length, e.success) for e in steps[-1].episodes] == [(3, False), (3, False)]
    assert envs.at_start().all()
    envs.step([2, 2])
    envs.step([2, 2])
    envs.step_limit = 1  # reduced during an episode
    assert envs.step([2, 2]).truncated.all()


def test_an_env_that_ends_at_the_limit_is_not_truncated() -> None:
    unlimited, limited = _make(num_envs=1), _make(num_envs=1)
    unlimited.reset()
    length = next(e.length for _ in range(100) for e in unlimited.step([1]).episodes)
    limited.step_limit = length
    limited.reset()
    last = [limited.step([1]) for _ in range(length)][-1]
    assert last.terminated.all() and not last.truncated.any()


def test_a_saved_state_resumes_exactly() -> None:
    envs, again = _make(), _make()
    envs.reset()
    _play(envs, 29, seed=0)
    again.load_state_dict(envs.state_dict())
    assert again.observations() == envs.observations()
    assert _play(again, 40, seed=1) == _play(envs, 40, seed=1)


def test_another_episode_than_the_saved_one_is_an_error() -> None:
    envs = _make(num_envs=1)
    with pytest.raises(RunError, match="env 0"):
        envs.load_state_dict([{"episode": 0, "actions": [0] * 12, "seen": ""}])
