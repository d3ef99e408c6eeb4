"""What an env may not do."""

import gymnasium
import pytest
import torch

from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from groundling.training.collect import EnvCollector
from tests.conftest import Corridor, TablePolicy

_ACTIONS = ["left", "right", "stay"]


class _Unseeded(Corridor):
    def reset(self):
        return super().reset()


class _NaN(Corridor):
    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float("nan"), terminated, truncated, info


class _Continuous(Corridor):
    action_space = gymnasium.spaces.Box(0, 1)


class _Silent(Corridor):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}


@pytest.mark.parametrize(
    ("env", "told"), [(_Unseeded, "seed"), (_Continuous, "Discrete"), (_Silent, "descriptions")]
)
def test_an_env_that_breaks_a_rule_is_told(env, told) -> None:
    with pytest.raises(ConfigError, match=told):
        TextVectorEnv(env, 2, _ACTIONS, seed_of=lambda i, k: 0).reset()


def test_rewards_must_be_finite() -> None:
    envs = TextVectorEnv(_NaN, 2, _ACTIONS, seed_of=lambda i, k: 2 * i)
    envs.reset()
    with pytest.raises(RunError, match="nan"):
        EnvCollector(envs, 1).collect(TablePolicy(), generator=torch.Generator())


def test_a_policy_must_choose_what_there_is() -> None:
    envs = TextVectorEnv(Corridor, 1, _ACTIONS, seed_of=lambda i, k: 0)
    envs.reset()
    with pytest.raises(RunError, match="action 3 of 3"):
        envs.step([3])
