"""Mixtures of text envs: which env an episode uses, its actions, and invalid arguments."""

from collections import Counter
from typing import Any

import gymnasium
import pytest

from groundling.envs.mixture import Mixture
from groundling.envs.seeds import held_out_seed, training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from tests.envs import (
    doors,  # noqa: F401  (registers test/Doors-v0)
    echo,  # noqa: F401  (registers test/Echo-v0)
)

_ENVS: dict[str, Any] = {
    "goto": {"env": "BabyAI-GoToObj-v0"},
    "doors": {"env": "test/Doors-v0"},
    "numbered": {"env": "test/Doors-v0", "discrete": 5},
}


def test_seeds_choose_envs_evenly_and_training_uses_a_part_of_them() -> None:
    env = Mixture(_ENVS, train=["goto", "doors"])
    train = Counter(env.reset(seed=training_seed(0, 0, n))[1]["task"] for n in range(60))
    held_out = Counter(env.reset(seed=held_out_seed(n))[1]["task"] for n in range(90))
    assert train.keys() == {"goto", "doors"} and held_out.keys() == _ENVS.keys()
    assert min(train.values()) > 18 and min(held_out.values()) > 18


@pytest.mark.parametrize("name", _ENVS)
def test_an_episode_is_that_of_the_env_alone(name: str) -> None:
    args = dict(_ENVS[name])
    envs = [
        TextVectorEnv.make("Mixture-v0", 2, envs=_ENVS, train=[name]),
        TextVectorEnv.make(args.pop("env"), 2, **args),
    ]
    observations = [env.reset() for env in envs]
    for step in range(40):
        for mixed, alone in zip(*observations, strict=True):
            assert (mixed.goal, mixed.descriptions) == (alone.goal, alone.descriptions)
            assert mixed.actions == alone.actions
        chosen = [(step * step + i) % len(one.actions) for i, one in enumerate(observations[0])]
        steps = [env.step(chosen) for env in envs]
        observations = [one.observations for one in steps]
        assert (steps[0].rewards == steps[1].rewards).all() and (steps[0].dones == steps[1].dones).all()
        for mixed, alone in zip(*(one.episodes for one in steps), strict=True):
            assert (mixed.task, mixed.success, mixed.seed) == (name, alone.success, alone.seed)


def test_episodes_are_replayed() -> None:
    envs = [TextVectorEnv.make("Mixture-v0", 4, envs=_ENVS) for _ in range(2)]
    seen = envs[0].reset()
    for _ in range(11):
        seen = envs[0].step([len(one.actions) - 1 for one in seen]).observations
    envs[1].load_state_dict(envs[0].state_dict())
    assert [one.descriptions[-1] for one in envs[1].observations()] == [one.descriptions[-1] for one in seen]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"envs": {}}, "envs is empty"),
        ({"envs": _ENVS, "train": []}, "train is empty: name at least one"),
        ({"envs": _ENVS, "train": ["door"]}, "unknown env in train 'door': did you mean 'doors'"),
        ({"envs": {"goto": "BabyAI-GoToObj-v0"}}, r"the env goto must be a mapping such as \{env: ID\}"),
        ({"envs": {"goto": {"env": "BabyAI-GoToObject-v0"}}}, "unknown env 'BabyAI-GoToObject-v0'"),
        ({"envs": {"goto": {"env": "BabyAI-GoToObj-v0", "rooms": 3}}}, "cannot be created with .*rooms"),
        ({"envs": {"far": {"env": "openenv:http://127.0.0.1:1"}}}, "cannot be part of a mixture"),
        ({"envs": {"echo": {"env": "test/Echo-v0"}}}, "the env echo accepts any text"),
    ],
)
def test_mistakes_are_reported(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gymnasium.make("Mixture-v0", disable_env_checker=True, **args)
