"""Envs in which any text is an action."""

import json
from typing import Any

import gymnasium
import pytest

from groundling.envs.checking import check_env
from groundling.envs.make import name_actions
from groundling.envs.seeds import training_seed
from groundling.envs.text_episode import read_metrics
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)
from tests.envs.echo import Echo


def _make(num_envs: int = 2, workers: int = 0, history: int | None = None) -> TextVectorEnv:
    seeds = lambda i, k: training_seed(0, i, k)  # noqa: E731
    return TextVectorEnv(Echo, num_envs, (), seeds, history, num_workers=workers)


def test_texts_reach_the_env_and_the_history() -> None:
    assert name_actions("test/Echo-v0", {}).names == ()
    envs = _make()
    word = envs.reset()[0].descriptions[-1][1]
    step = envs.step([f"it is\n{word}", "no"])
    first = step.observations[0]
    assert step.rewards.tolist() == [1, 0] and first.actions == () and first.past_actions == (f"it is\n{word}",)
    assert first.descriptions[-1] == (f"You said 'it is\\n{word}'", word)
    (episode, other) = envs.step(["x", word]).episodes
    assert episode.actions == (f"it is\n{word}", "x") and (episode.episode_return, episode.success) == (1, False)
    assert episode.figures == {"letters": 1} and other.actions == ("no", word)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_episode_resumes_by_its_texts(workers: int) -> None:
    envs = _make(workers=workers)
    envs.reset()
    envs.step(["one", 'two "\u00e9"'])
    resumed = _make()
    resumed.load_state_dict(json.loads(json.dumps(envs.state_dict())))
    assert resumed.observations() == envs.observations()
    assert resumed.step(["a", "b"]).episodes == envs.step(["a", "b"]).episodes
    envs.close()


@pytest.mark.parametrize(("names", "action"), [((), 0), (["a", "b"], "a")])
def test_an_action_of_the_other_form_is_refused(names: Any, action: Any) -> None:
    envs = TextVectorEnv(Echo, 1, names, lambda i, k: 0)
    envs.reset()
    with pytest.raises(RunError, match="the policy chose action"):
        envs.step([action])


@pytest.mark.parametrize("env", ["test/Echo-v0", "test/Calculator-v0"])
def test_check_env_plays_with_words_of_the_observation(env: str) -> None:
    played = check_env(env, {}, num_episodes=3)
    assert len(played.episodes) == 3 and played.steps >= 3
    if env == "test/Echo-v0":
        assert played.resumed_after == 1
        words = ["repeat", "the", "word", "The", "word", "is", "red", "blue", "key", "You", "said"]
        assert {action for episode in played.episodes for action in episode.actions} <= {*words, *map(repr, words)}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"score": "high"}, "must map names to finite numbers"),
        ({"score": float("nan")}, "must map names to finite numbers"),
        ([1], "must map names to finite numbers"),
        ({"success": 1}, "'success', a name that every run already has"),
    ],
)
def test_metrics_of_an_env_are_numbers(metrics: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_metrics({"metrics": metrics})
    assert read_metrics({}) == {} and read_metrics({"metrics": {"a": 1}}) == {"a": 1.0}


def test_an_env_that_lists_actions_is_unaffected() -> None:
    assert name_actions("test/Doors-v0", {}).names is None
    assert isinstance(gymnasium.make("test/Doors-v0").action_space, gymnasium.spaces.Text)
