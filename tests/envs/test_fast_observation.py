"""Observations from look-up tables equal Minigrid's (`benchmarks/sight.py` compares 100,000 states of each env)."""

import copy
import pickle

import gymnasium
import minigrid  # noqa: F401
import numpy as np
import pytest
from benchmarks.sight import random_states, random_thing, same
from minigrid.core.world_object import Ball, Door, Wall
from minigrid.minigrid_env import MiniGridEnv

import groundling  # noqa: F401  (registers)
from groundling.envs.babyai_text import BabyAIText, describe
from groundling.envs.babyai_text.sight import image_by_tables, use_lookup_tables
from groundling.envs.make import make_text_env
from tests.thorough import one_in, thorough

_BABYAI = sorted(id for id in gymnasium.registry if id.startswith("BabyAI-"))
_MINIGRID = (
    "MiniGrid-BlockedUnlockPickup-v0",
    "MiniGrid-DistShift1-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-Dynamic-Obstacles-8x8-v0",
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-Fetch-8x8-N3-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-GoToDoor-8x8-v0",
    "MiniGrid-KeyCorridorS4R3-v0",
    "MiniGrid-LavaCrossingS11N5-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MemoryS11-v0",
    "MiniGrid-MultiRoom-N6-v0",
    "MiniGrid-ObstructedMaze-Full-v1",
    "MiniGrid-Playground-v0",
    "MiniGrid-PutNear-8x8-N3-v0",
)


@pytest.mark.parametrize("id", one_in(3, [*_BABYAI, *_MINIGRID]))
def test_every_env_is_seen_as_minigrid_sees_it(id: str) -> None:
    assert all(same(env) for env in random_states(id, count=150, seed=1, per_episode=50))


@pytest.mark.parametrize("see_through_walls", [False, True])
@pytest.mark.parametrize("density", [0.3, *thorough(0.1, 0.5)])
def test_random_grids_are_seen_as_by_minigrid(density: float, see_through_walls: bool) -> None:
    env = gymnasium.make("BabyAI-GoToLocal-v0").unwrapped
    env.reset(seed=0)
    use_lookup_tables(env)
    env.see_through_walls = see_through_walls
    rng = np.random.default_rng(2)
    for _ in range(300):
        size = len(env.grid.grid)
        env.grid.grid = [random_thing(rng) if rng.random() < density else None for _ in range(size)]
        env.agent_pos, env.agent_dir = rng.integers(8, size=2), rng.integers(4)  # numpy's integers also work
        env.carrying = random_thing(rng) if rng.random() < 0.5 else None
        assert same(env)


def test_objects_may_change_in_place() -> None:
    env = make_text_env("BabyAI-GoToLocal-v0").unwrapped
    env.reset(seed=0)
    ahead, door = Ball("red"), Door("red", is_locked=True)
    env.agent_pos, env.agent_dir = (3, 3), 0
    env.grid.set(4, 3, ahead)
    env.grid.set(3, 4, door)
    assert env.gen_obs()["image"][3, 5].tolist() == [6, 0, 0]
    assert env.gen_obs()["image"][4, 6].tolist() == [4, 0, 2]
    ahead.color, door.is_locked, door.is_open = "blue", False, True
    assert env.gen_obs()["image"][3, 5].tolist() == [6, 2, 0]
    assert env.gen_obs()["image"][4, 6].tolist() == [4, 0, 0]


def test_other_objects_and_views_are_left_to_minigrid() -> None:
    class Curtain(Wall):
        """A custom object that does not hide anything."""

        def see_behind(self) -> bool:
            return True

    small = gymnasium.make("MiniGrid-DoorKey-8x8-v0", agent_view_size=5).unwrapped
    odd = gymnasium.make("BabyAI-GoToLocal-v0").unwrapped
    for env in (small, odd):
        env.reset(seed=0)
        use_lookup_tables(env)
    odd.agent_pos, odd.agent_dir = (1, 3), 0
    odd.grid.set(2, 3, Curtain())
    for env in (small, odd):
        assert image_by_tables(env) is None
        assert np.array_equal(env.gen_obs()["image"], MiniGridEnv.gen_obs(env)["image"])
    odd.carrying, odd.agent_dir = Curtain(), 2
    assert image_by_tables(odd) is None
    odd.carrying = None
    assert image_by_tables(odd) is not None


def test_overridden_observations_are_kept() -> None:
    class Blind(type(gymnasium.make("BabyAI-GoToLocal-v0").unwrapped)):  # type: ignore[misc]
        def gen_obs(self) -> dict:
            return {**super().gen_obs(), "image": np.zeros((7, 7, 3), dtype=np.uint8)}

    env = BabyAIText(Blind())
    observation, info = env.reset(seed=0)
    assert not observation["image"].any() and info["descriptions"] == []


def test_copies_of_an_env_see_their_own_grids() -> None:
    env = make_text_env("BabyAI-MixedTrainLocal-v0", task="goto")
    plain = gymnasium.make("BabyAI-GoToLocal-v0").unwrapped
    assert "gen_obs" in vars(env.unwrapped) and "gen_obs" not in vars(plain)
    env.reset(seed=0)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        before = env.unwrapped.gen_obs()["image"]
        other.unwrapped.agent_dir = (other.unwrapped.agent_dir + 1) % 4
        assert not np.array_equal(other.unwrapped.gen_obs()["image"], before)
        assert same(other.unwrapped) and same(env.unwrapped)


def test_views_of_other_sizes_are_described() -> None:
    env = make_text_env("MiniGrid-Empty-8x8-v0", agent_view_size=5)
    observation, info = env.reset(seed=0)  # in the corner, facing along the upper wall
    assert observation["image"].shape == (5, 5, 3)
    assert info["descriptions"] == describe(observation["image"]) == ["You see a wall 1 step left"]
