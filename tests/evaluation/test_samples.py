"""Samples of episodes, replayed step by step."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from groundling.envs.text_env import TextObservation
from groundling.policies import RandomPolicy
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import held_out_seed_of, make_envs, play, policy_chooser
from groundling.worlds.text.frames import picture_of, replay, sample_of
from tests.conftest import Corridor


class _ReadsMissions(RandomPolicy):
    def prompts(self, observations: Sequence[TextObservation]) -> list[str]:
        return [o.goal for o in observations]


def test_an_episode_with_a_random_task_is_replayed_in_that_task() -> None:
    args = {"draw_task": "construction", "max_steps": 2}
    config = TextConfig(env="BabyAI-MixedTrainLocal-v0", args=args)
    policy = _ReadsMissions()
    with policy_chooser(policy, False, 0) as player:
        envs = make_envs(config, 8, held_out_seed_of(8))
        episodes = list(play(player, envs, 8))
    for _, episode in episodes:
        sample = sample_of(config, policy, episode)
        assert {step["prompt"] for step in sample["steps"]} == {episode.mission}
        assert sample["task"] == episode.task
        width = 15 if episode.task == "open" else 8  # two rooms with a common wall, or one room
        _, env = next(replay(config, sample["seed"], sample["actions"], sample["task"]))
        picture = picture_of(env)
        assert picture is not None and picture.shape[1] == 32 * width


class _Lists(Corridor):
    """Lists a render mode that its constructor does not accept, like some subclasses of MiniGrid's env."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}


class _Takes(_Lists):
    """Accepts the mode, but draws nothing."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


class _DrawsText(_Takes):
    """Draws text."""

    def render(self) -> Any:
        return "###"


class _Draws(_Takes):
    def render(self) -> Any:
        return np.zeros((2, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("env", "shape"), [(Corridor, None), (_Lists, None), (_Takes, None), (_DrawsText, None), (_Draws, (2, 3, 3))]
)
def test_an_env_without_pictures_is_replayed_without(env: type[Corridor], shape: tuple[int, ...] | None) -> None:
    gymnasium.register("test/Drawn-v0", entry_point=env)
    config = TextConfig(env="test/Drawn-v0", actions=["left", "right", "wait"])
    pictures = [picture_of(env) for _, env in replay(config, 1, [2, 2], "")]
    assert [None if picture is None else picture.shape for picture in pictures] == [shape, shape]
    del gymnasium.registry["test/Drawn-v0"]
