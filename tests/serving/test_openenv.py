"""Text worlds as OpenEnv environments, tested with OpenEnv's own client."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
import pytest

pytest.importorskip("openenv")
import uvicorn
from openenv.core import GenericEnvClient

import tests.envs.echo  # noqa: F401  (registers envs)
from groundling.envs.babyai_text import ACTIONS
from groundling.envs.make import make_text_env
from groundling.serving.http import LOOPBACK, MOST_BYTES, listen
from groundling.serving.openenv import make_app

LEVEL, OTHER = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
TOKEN = {"Authorization": "Bearer abc"}
Connect = Callable[..., Any]


class Trap(gymnasium.Env[str, str]):
    """An env with different actions at each step, one of which raises an error and another exits."""

    observation_space = action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "a door", {"actions": ["wait", "fall", "leave"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "fall":
            raise OSError("no floor")
        if action == "leave":
            raise SystemExit(3)
        return "a door", 0.0, False, False, {"actions": ["fall", "leave"]}


gymnasium.register("test/Trap-v0", entry_point=Trap)


@contextmanager
def _serving(env: str, *overrides: str, **settings: Any) -> Iterator[Connect]:
    app = make_app(env, overrides, hosts=LOOPBACK, **settings)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws_max_size=MOST_BYTES))
    listening = listen("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield lambda **given: closing(GenericEnvClient(base_url=address, **given).sync())
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def level() -> Iterator[Connect]:
    with _serving(LEVEL, token="abc") as connect:
        yield lambda: connect(headers=TOKEN)


def _play(env: Any, seed: int, suite: str | None) -> list[Any]:
    """Play a random episode with a client."""
    result, draw = env.reset(seed=seed, suite=suite), random.Random(seed)
    rows = []
    while True:
        seen = result.observation
        rows.append([seen["goal"], seen["text"], result.reward, result.done, seen["success"]])
        if result.done:
            return rows
        action = draw.randrange(len(seen["actions"]))
        result = env.step({"action": action if action % 2 else seen["actions"][action]})


def _play_direct(seed: int, suite: str | None) -> list[Any]:
    env = make_text_env(
        OTHER if suite == "unseen-objects" else LEVEL, control=suite if suite in ("swapped", "scrambled") else None
    )
    (observation, info), draw = env.reset(seed=seed), random.Random(seed)
    rows: list[Any] = [[observation["mission"], "\n".join(info["descriptions"]), None, False, None]]
    while not rows[-1][3]:
        action = draw.randrange(len(ACTIONS["english"]))
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        success = bool(terminated and reward > 0) if done else None
        rows.append([observation["mission"], "\n".join(info["descriptions"]), float(reward), done, success])
    return rows


def test_eight_sessions_play_the_same_episodes_as_directly(level: Connect) -> None:
    jobs = [(seed, suite) for suite in (None, "swapped", "scrambled", "unseen-objects") for seed in (2, 7)]
    together = threading.Barrier(len(jobs))

    def play(job: tuple[int, str | None]) -> list[Any]:
        with level() as env:
            env.connect()
            together.wait(60)
            return _play(env, *job)

    with ThreadPoolExecutor(len(jobs)) as pool:
        played = dict(zip(jobs, pool.map(play, jobs), strict=True))
    for job in jobs:
        assert played[job] == _play_direct(*job)
    assert played[2, None][0][0] != played[2, "swapped"][0][0]


def test_what_a_client_reads(level: Connect) -> None:
    with level() as env:
        first = env.reset(seed=3)
        assert first.observation["goal"] == "go to a purple key after you pick up the grey ball"
        assert first.observation["actions"] == [*ACTIONS["english"]]
        assert first.metadata == {"seed": 3, "suite": None} and first.reward is None
        changed = env.reset(seed=3, suite="invented-words")
        assert changed.observation["goal"] == "go to a vurst dax after you pick up the sil xolo"
        french = env.reset(seed=3, suite="french").observation
        assert french["actions"] == [*ACTIONS["french"]] and not env.step({"action": "tourner à gauche"}).done
        seed = env.reset(episode_id="mine").metadata["seed"]
        assert 0 <= seed < 2**30  # seed of a training episode
        assert env.state() == {"episode_id": "mine", "step_count": 0, "seed": seed, "suite": None}


def test_mistakes_of_a_client(level: Connect) -> None:
    with level() as env:
        for action, message in ((0, "no episode is running: call reset first"),):
            with pytest.raises(RuntimeError, match=message):
                env.step({"action": action})
        env.reset(seed=3)
        wrong = {"go foward": "unknown action 'go foward': did you mean 'go forward'", 6: "an index below 6", -1: "-1"}
        for action, message in wrong.items():
            with pytest.raises(RuntimeError, match=message):
                env.step({"action": action})
        for value in (True, 1.0, None, ["go forward"], "x" * 100_001):
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                env.step({"action": value})
        assert env.step({"action": "go forward"}).observation["goal"]  # the episode continues
        options = {
            "seed": (-1, 2**31, "3", True),
            "suite": ("held-out", 4),
            "task": ("goto",),
            "episode_id": ("x" * 256,),
        }
        for name, values in options.items():
            for value in values:
                with pytest.raises(RuntimeError, match=rf"{name}[= ]"):
                    env.reset(**{name: value})
        assert env.step({"action": 0}).observation["goal"]


def test_settings_and_the_limit_of_sessions() -> None:
    with _serving(LEVEL, "world.args={task: goto}", "world.step_limit=2", max_sessions=1) as connect, connect() as env:
        assert env.reset(seed=0).observation["goal"].startswith("go to")
        assert not env.step({"action": 0}).done
        last = env.step({"action": 0})
        assert last.done and last.observation["success"] is False and last.metadata["truncated"]
        assert last.metadata["figures"]["first_none"] == 1.0
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step({"action": 0})
        with connect() as another, pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            another.reset()


def test_the_token_is_required() -> None:
    with (
        _serving("test/Echo-v0", token="abc") as connect,
        connect(headers={"Authorization": "Bearer abd"}) as env,
        pytest.raises(ConnectionError, match="403"),
    ):
        env.reset()


def test_an_env_where_any_text_is_an_action() -> None:
    with _serving("test/Echo-v0") as connect, connect() as env:
        seen = env.reset(seed=0).observation
        word = seen["text"].splitlines()[1]
        assert seen["goal"] == "repeat the word" and seen["actions"] == []
        with pytest.raises(RuntimeError, match="action 0 is not admissible: expected text"):
            env.step({"action": 0})
        assert env.step({"action": f"{word}!"}).reward == 1.0
        last = env.step({"action": word})
        assert last.observation["success"] and last.metadata["figures"] == {"letters": float(len(word))}


def test_an_env_that_lists_its_actions_raises_and_exits(capfd: pytest.CaptureFixture[str]) -> None:
    with _serving("test/Trap-v0") as connect, connect() as env:
        assert env.reset(seed=5).observation["actions"] == ["wait", "fall", "leave"]
        for action, error in (("fall", "OSError"), ("leave", "SystemExit")):
            env.reset(seed=5)
            assert env.step({"action": "wait"}).observation["actions"] == ["fall", "leave"]
            with pytest.raises(RuntimeError, match=rf"the env raised {error} \(step, seed 5, after 1 steps\)"):
                env.step({"action": action})
            with pytest.raises(RuntimeError, match="call reset first"):
                env.step({"action": action})
    assert "no floor" in capfd.readouterr().err
