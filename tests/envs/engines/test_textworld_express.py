"""TextWorldExpress's games as text envs, if the engine and Java are installed."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from groundling.cli.main import main
from groundling.envs.checking import check_env
from groundling.envs.engines import textworld_express
from groundling.envs.seeds import held_out_seed
from groundling.errors import ConfigError
from tests.thorough import THOROUGH, thorough

pytest.importorskip("textworld_express")
pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="TextWorldExpress needs Java")

ID = "TextWorldExpress-v0"
COIN = {"game": "coin", "params": {"numLocations": 4, "includeDoors": 0}}


def _play(env: gymnasium.Env[str, str], seed: int, rng_seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(rng_seed)
    observation, info = env.reset(seed=seed)
    episode: list[Any] = [observation, info]
    while True:
        step = env.step(str(rng.choice(info["actions"])))
        info = step[-1]
        episode.append(step)
        if step[2] or step[3]:
            return episode


def test_equal_seeds_give_equal_games_and_lists_that_change() -> None:
    one, other = (gymnasium.make(ID, disable_env_checker=True, max_steps=20, **COIN) for _ in range(2))
    first = _play(one, seed=3)
    _play(other, seed=4)
    assert _play(other, seed=3) == first != _play(other, seed=4)
    lists = [tuple(step[-1]["actions"]) for step in first[2:]]
    assert len(set(lists)) > 1 and all(actions == tuple(sorted(actions)) for actions in lists)


def test_training_and_held_out_games_are_of_other_folds() -> None:
    env, train, test = (
        gymnasium.make(ID, disable_env_checker=True, **COIN, **args)
        for args in ({}, {"fold": "train"}, {"fold": "test"})
    )
    held_out = next(seed for k in range(10_000) if (seed := held_out_seed(k)) % 1000 == 5)
    assert env.reset(seed=5)[0] == train.reset(seed=5)[0]
    assert env.reset(seed=held_out)[0] == test.reset(seed=5)[0] != train.reset(seed=5)[0]


@pytest.mark.parametrize(
    "game", ["cookingworld", "simonsays", *thorough("coin", "mapreader", "twc", "sorting", "arithmetic")]
)
def test_each_game_can_be_trained_in(game: str) -> None:
    played = check_env(ID, {"game": game, "max_steps": 10}, num_episodes=2)
    assert played.most_actions > 1 and played.shown[0].goal


def test_unknown_games_and_options_are_errors() -> None:
    for args, wanted in (
        ({"game": "chess"}, "no game 'chess'; available: .*coin"),
        ({"fold": "all"}, "fold must be train, dev, test"),
        ({"params": {"numLocations": 99}}, "cannot load coin with numLocations=99"),
        ({"params": {"rooms": 3}}, "cannot load coin with rooms=3"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            gymnasium.make(ID, **args)


def test_a_refused_env_stops_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = textworld_express.start_java
    monkeypatch.setattr(textworld_express, "start_java", lambda *args: started.append(start(*args)) or started[-1])
    with pytest.raises(ConfigError, match="cannot load sorting"):
        gymnasium.make(ID, game="sorting", params={"rooms": 3})
    assert started[0].java_process.poll() is not None


@THOROUGH
def test_drrn_trains_in_it(tmp_path: Path) -> None:
    words = ["world.num_envs=2", "training.steps=16", "world.num_steps=4", "device=cpu"]
    assert main(["train", "worlds/coin_drrn", *words, f"run_dir={tmp_path / 'run'}"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2"]) == 0


def test_envs_of_one_process_do_not_change_each_others_scores() -> None:
    seed, actions = 821328062, ["take 33 pineapples", "take 1 grapefruit", "put 1 grapefruit in box"]
    one, other = (gymnasium.make(ID, game="sorting").unwrapped for _ in range(2))
    for env in (one, other):
        env.reset(seed=seed)
    gained = [sum(env.step(action)[1] for action in actions) for env in (one, other)]
    assert gained == pytest.approx([1 / 3, 1 / 3])
    assert one.step("look around")[1] == 0  # not the reward of the other env
    for env in (one, other):
        env.close()
