"""The env of an OpenEnv server, tested with a stand-in for OpenEnv's client."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundling.config.compose import compose, from_values
from groundling.envs.checking import check_env
from groundling.envs.make import TextEnvMaker, inspect_env, make_text_env, step_limit
from groundling.envs.openenv import env as module
from groundling.envs.openenv.env import OpenEnv
from groundling.envs.vector import TextVectorEnv
from groundling.envs.worker_pool import EnvLost
from groundling.errors import ConfigError, RunError
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.frames import view
from tests.envs.openenv.colours import Server

URL = "http://127.0.0.1:8000"
ARGS: dict[str, Any] = {
    "action": "door",
    "admissible": "legal_actions",
    "names": {0: "red", 1: "green", 2: "blue"},
    "goal": "{question}",
    "descriptions": ["messages.-1.content"],
}
Connect = Callable[[Server], Server]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connect(server: Server) -> Server:
        monkeypatch.setattr(module, "open_client", server)
        return server

    return connect


def make_envs(num_envs: int = 2, id: str = f"openenv:{URL}") -> TextVectorEnv:
    maker = TextEnvMaker.of(id, **ARGS)
    return TextVectorEnv(maker, num_envs, None, lambda env, episode: 10 * env + episode)


def play(envs: TextVectorEnv, steps: int, first: int = 0) -> list[Any]:
    played = []
    for number in range(first, steps):
        rng = np.random.default_rng(number)
        step = envs.step([int(rng.integers(len(one.actions))) for one in envs.observations()])
        played.append((step.observations, step.rewards.tolist(), step.episodes))
    return played


@pytest.mark.parametrize(
    ("descriptions", "sentences"),
    [
        (["question"], ["Which door is {}?"]),
        (["metadata.size", "metadata.size.0"], ["size: [3, 1]", "0: 3"]),
        (["It is {metadata.size.-1} high.", "{}"], ["It is 1 high.", "{}"]),
    ],
)
def test_fields_become_sentences(connect: Connect, descriptions: list[str], sentences: list[str]) -> None:
    connect(Server())
    env = OpenEnv(URL, **{**ARGS, "descriptions": descriptions})
    _, info = env.reset(seed=3)
    colour = info["goal"].split()[-1].rstrip("?")
    assert info["descriptions"] == [one.replace("{}", colour) if "door" in one else one for one in sentences]
    assert sorted(info["actions"]) == ["blue", "green", "red"]


def test_without_descriptions_all_other_fields_are_read(connect: Connect) -> None:
    connect(Server())
    env = OpenEnv(URL, **{**ARGS, "descriptions": None})
    assert [line.partition(":")[0] for line in env.reset(seed=3)[1]["descriptions"]] == ["question", "messages"]


def test_an_action_has_the_servers_type_and_constants(connect: Connect) -> None:
    server = connect(Server())
    env = make_text_env(f"openenv:{URL}", **{**ARGS, "constants": {"player": 1}, "reset": {"level": "hard"}})
    env.reset(seed=3)
    env.step("green")
    assert server.sent == [{"seed": 3, "level": "hard"}, {"player": 1, "door": 1}]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (TimeoutError(), "did not respond to a step within 60 s"),
        (ConnectionError("refused"), "lost the connection: refused"),
        (json.JSONDecodeError("Expecting value", "<html>" + "x" * 99, 0), "with JSON: '<html>x*'$"),
        (AttributeError("'list' object has no attribute 'get'"), "failed during a step: AttributeError"),
        (RuntimeError("Server error: no door (code: EXECUTION_ERROR)"), "failed during a step: .* no door"),
        ({"observation": ["red"]}, r"sent the observation \['red'\]: expected a mapping"),
        ({"fields": {"size": float("nan")}}, "sent an observation with NaN"),
        ({"reward": float("nan")}, "sent the reward nan: expected a finite number"),
        ({"reward": 10**400}, "sent the reward 10*: expected a finite number"),
        ({"reward": "1"}, "sent the reward '1': expected a finite number"),
        ({"done": 1}, "sent done=1: expected true or false"),
        ({"fields": {"legal_actions": {"a": 0}}}, "sent {'a': 0} as legal_actions: expected a list"),
        ({"fields": {"legal_actions": [0, 0]}}, "expected distinct values"),
        ({"fields": {"legal_actions": []}}, "expected distinct values"),
        ({"fields": {"messages": []}}, "sent an observation without messages.-1.content"),
    ],
)
def test_bad_answers_lose_one_session(connect: Connect, trouble: Any, message: str) -> None:
    connect(Server({2: trouble}))
    env = OpenEnv(URL, **ARGS)
    _, info = env.reset(seed=0)
    with pytest.raises(EnvLost, match=message):
        env.step(info["actions"][0])
    with pytest.raises(EnvLost, match="has no session"):
        env.step(info["actions"][0])
    _, again = env.reset(seed=0)
    assert again == info


def test_an_action_that_is_not_listed_loses_the_session(connect: Connect) -> None:
    """This also happens if a server without seeds must repeat an episode."""
    connect(Server())
    env = OpenEnv(URL, **ARGS)
    env.reset(seed=0)
    with pytest.raises(EnvLost, match="does not list the action 'pink'"):
        env.step("pink")


def test_a_session_that_was_replaced_unnoticed_is_lost(connect: Connect) -> None:
    connect(Server())
    env = OpenEnv(URL, **ARGS)
    _, info = env.reset(seed=0)
    env._client.async_client._ws = object()  # as if OpenEnv's client had reconnected
    with pytest.raises(EnvLost, match="lost its session, which the server closed"):
        env.step(info["actions"][0])


def test_a_lost_session_returns_to_its_state(connect: Connect) -> None:
    connect(Server())
    (whole := make_envs()).reset()
    connect(Server({4: ConnectionError("reset by peer"), 9: TimeoutError()}))
    (envs := make_envs()).reset()
    with pytest.warns(UserWarning, match="env 1 lost the connection: reset by peer"):
        assert play(envs, 12) == play(whole, 12)
    assert (envs.incidents.lost_envs, envs.incidents.cut_episodes) == (2, 0)


def test_without_seeds_a_lost_episode_is_cut_off(connect: Connect) -> None:
    connect(Server({4: ConnectionError("gone")}, keeps_seeds=False))
    (envs := make_envs(num_envs=1)).reset()
    with pytest.warns(UserWarning, match="does not use seeds; the episode is cut off"):
        play(envs, 5)
    assert envs.incidents.cut_episodes == 1


@pytest.mark.parametrize("keeps_seeds", [True, False])
def test_resuming(connect: Connect, keeps_seeds: bool, recwarn: pytest.WarningsRecorder) -> None:
    connect(Server(keeps_seeds=keeps_seeds))
    (envs := make_envs()).reset()
    play(envs, 7)
    saved = json.loads(json.dumps(envs.state_dict()))
    (resumed := make_envs()).load_state_dict(saved)
    assert [one["episode"] for one in resumed.state_dict()] == [one["episode"] for one in saved]
    if keeps_seeds:
        assert resumed.observations() == envs.observations() and not recwarn.list
    else:
        assert "does not use seeds: the unfinished episodes of" in str(recwarn.pop().message)
        assert resumed.at_start().all()


def test_a_server_that_always_fails_ends_the_run(connect: Connect) -> None:
    connect(Server({number: TimeoutError() for number in range(1, 99) if number % 2 == 0}))
    (envs := make_envs(num_envs=1)).reset()
    with pytest.warns(UserWarning), pytest.raises(RunError, match="failed 6 times without a step in between"):
        play(envs, 9)


def test_the_same_observation_for_ever_is_reported(connect: Connect) -> None:
    same = {"fields": {"messages": [{"content": "Hello."}], "legal_actions": [0, 1]}, "done": False}
    server = connect(Server({number: {"fields": dict(same["fields"]), "done": False} for number in range(1, 9)}))
    env = OpenEnv(URL, **ARGS, max_steps=3)
    env.reset(seed=0)
    env.step("red")
    env.step("red")
    with pytest.warns(UserWarning, match="returned the same observation for 3 steps"):
        assert env.step("red")[3]
    assert len(server.sent) == 4


@pytest.mark.parametrize("keeps_seeds", [True, False])
def test_checking_compares_equal_seeds(connect: Connect, keeps_seeds: bool) -> None:
    connect(Server(keeps_seeds=keeps_seeds))
    played = check_env(f"openenv:{URL}", ARGS, num_episodes=2)
    assert bool(played.unequal) is not keeps_seeds and len(played.episodes) == 2


def test_an_env_is_inspected_without_a_connection(connect: Connect) -> None:
    server = connect(Server())
    assert inspect_env(f"openenv:{URL}", {"action": "say"}).takes_any_text
    assert not inspect_env(f"openenv:{URL}", ARGS).takes_any_text
    assert step_limit(f"openenv:{URL}", {**ARGS, "max_steps": 7}) == 7
    config = TextConfig(env=f"openenv:{URL}", args=ARGS)
    sample = {"seed": 1, "actions": [0], "success": True, "mission": "open", "suite": "held-out"}
    assert view(config, sample).left_out == 1
    assert not server.sent


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("openenv:localhost:8000", ARGS, "is not a server: expected openenv:http://HOST:PORT"),
        ("openenv:file:///etc/passwd", ARGS, "is not a server"),
        (f"openenv:{URL}", {}, "missing .* argument: 'action'"),
        (f"openenv:{URL}", {**ARGS, "names": "2:blue"}, "names must be a mapping, got '2:blue': quote it"),
        (f"openenv:{URL}", {**ARGS, "admissible": None}, "names has no effect without world.args.admissible"),
        (f"openenv:{URL}", {**ARGS, "constants": {"door": 1}}, "constants sets 'door', which the agent sets"),
        (f"openenv:{URL}", {**ARGS, "reset": {"seed": 1}}, "reset sets the seed, but each episode has its own"),
        (f"openenv:{URL}", {**ARGS, "max_steps": 0}, "max_steps and timeout of world.args must be positive, got 0"),
        (f"openenv:{URL}", {**ARGS, "descriptions": ["text"]}, "has no field text, .* its fields: question, legal"),
        (f"openenv:{URL}", {**ARGS, "descriptions": "text"}, "descriptions must be a list, got 'text'"),
        (f"openenv:{URL}", {**ARGS, "goal": "{metadata.goal}"}, "has no field metadata.goal"),
    ],
)
def test_invalid_settings(connect: Connect, id: str, args: dict[str, Any], message: str) -> None:
    connect(Server())
    with pytest.raises(ConfigError, match=message):
        make_text_env(id, **args).reset(seed=0)


def test_a_rejected_action_is_a_setting_to_correct(connect: Connect) -> None:
    connect(Server({2: RuntimeError("Server error: Invalid message (code: VALIDATION_ERROR)")}))
    env = OpenEnv(URL, **ARGS)
    _, info = env.reset(seed=0)
    with pytest.raises(ConfigError, match=f"rejects the action's fields door: .*check-env openenv:{URL}"):
        env.step(info["actions"][0])


def test_only_the_command_line_may_name_a_server(tmp_path: Path) -> None:
    id = f"openenv:{URL}"
    values = compose("text", [{"world.env": id}]).model_dump()
    with pytest.raises(ConfigError, match=f"sets world.env, but no file may .*world.env={id}"):
        from_values(values)
    assert from_values(values, [{"world.env": id}]).world.env == id  # type: ignore[attr-defined]
