"""Envs as Python objects, and the names of their actions."""

import functools
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing
from enum import IntEnum
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, Text

from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.objects import register_env
from groundling.envs.text_env import TextEnv
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError


class Plain(gymnasium.Env[Any, Any]):
    """Shows one string, and has no names for its two actions."""

    observation_space, action_space = Text(99), Discrete(2)

    def __init__(self, size: int = 3) -> None:
        self.size, self.steps = size, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return f"A line of {self.size}.", {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return f"{self.steps} of {self.size}.", float(action == 1), self.steps >= self.size, False, {}


class Quest(Plain):
    """Has names for its actions, and a goal under its own key."""

    action_names = ("stay", "go")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], {"the_task": "come to the end"}


class Move(IntEnum):
    GO_LEFT = 0
    GO_RIGHT = 1


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def _size(id: str) -> int:
    size: int = gymnasium.make(id).unwrapped.size  # type: ignore[attr-defined]
    return size


def test_every_kind_of_object_creates_envs() -> None:
    assert register_env(Plain) == register_env(Plain) == "Plain-v0" and _size("Plain-v0") == 3
    assert register_env(functools.partial(Plain, size=5)) == "Plain-v0" and _size("Plain-v0") == 5  # the last one
    assert register_env(lambda: TextEnv(Plain(6), goal="go")) == "Plain-v0" and _size("Plain-v0") == 6
    env = Plain(7)
    assert register_env(env) == "Plain-v0" and _size("Plain-v0") == 7
    assert gymnasium.make("Plain-v0").unwrapped is not env

    def a_long_line(size: int = 9) -> Plain:
        return Plain(size)

    assert register_env(a_long_line) == "a-long-line-v0" and _size("a-long-line-v0") == 9
    gymnasium.register("Plain-v0", entry_point=f"{__name__}:Plain")
    assert register_env(Plain) == "Plain-v0" and gymnasium.spec("Plain-v0").entry_point == f"{__name__}:Plain"


def test_an_env_that_cannot_be_copied_is_made_again_from_its_spec() -> None:
    gymnasium.register("test/Engine-v0", entry_point=Plain)
    env: Any = gymnasium.make("test/Engine-v0", size=8)
    env.unwrapped.lock = threading.Lock()
    assert _size(register_env(env)) == 8
    assert register_env(gymnasium.make("test/Engine-v0")) == "test/Engine-v0"
    alone: Any = Plain()
    alone.lock = threading.Lock()
    with pytest.raises(
        ConfigError, match=r"Plain cannot be copied .*pass its class, world=Plain, or .*lambda: Plain\("
    ):
        register_env(alone)


def test_two_lambdas_for_one_class_are_not_confused() -> None:
    class Counter(Plain): ...

    made: list[Any] = [lambda: Counter(1), lambda: Counter(2), *(lambda n=n: Counter(n) for n in (1, 2))]
    assert register_env(made[0]) == register_env(made[0])
    for other in made[1:]:
        with pytest.raises(ConfigError, match="already taken by another env"):
            register_env(other)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Move, "the class Move is not an env: derive it from gymnasium.Env"),
        (type("Till", (), {"reset": print}), r"Till is not an env: .* tools, pass lambda: ToolEnv\(Till\)"),
        (3, "world must be an env id, .* got 3"),
        (lambda: 3, "returned 3: return a gymnasium.Env"),
        (type("CartPole", (Plain,), {}), "the id CartPole-v0 of .* is already taken by another env"),
    ],
)
def test_other_objects_get_a_message(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_env(made)


def test_only_what_can_be_imported_reaches_workers() -> None:
    maker = TextEnvMaker.of(register_env(Plain))
    del gymnasium.registry["Plain-v0"]
    assert pickle.loads(pickle.dumps(maker))().unwrapped.size == 3
    local = TextEnvMaker.of(register_env(lambda: Plain(2)))
    with pytest.raises(ConfigError, match=r"cannot import .*Plain: .* or set world\.num_workers=0"):
        TextVectorEnv(local, 1, ["a", "b"], lambda env, episode: 0, num_workers=1)
    TextVectorEnv(local, 1, ["a", "b"], lambda env, episode: 0).close()


@pytest.mark.parametrize(
    ("attribute", "value", "names"),
    [
        ("action_names", ["go left", "go right"], ("go left", "go right")),
        ("ACTIONS", {0: "left", 1: "right"}, ("left", "right")),
        ("actions", {"right": 1, "left": 0}, ("left", "right")),
        ("Actions", Move, ("go left", "go right")),
        ("get_action_meanings", lambda self: ["LEFT", "RIGHT"], ("LEFT", "RIGHT")),
        ("actions", [0, 1], None),
        ("ACTIONS", {1: "left", 2: "right"}, None),
        ("Actions", property(lambda self: 1 / 0), None),
    ],
)
def test_actions_are_named_by_an_attribute_or_a_number(
    attribute: str, value: Any, names: tuple[str, ...] | None, request: pytest.FixtureRequest
) -> None:
    id = register_env(type(f"Plain{request.node.callspec.indices['attribute']}", (Plain,), {attribute: value}))
    if names is None:
        with pytest.warns(UserWarning, match="does not name its 2 actions, .* action 0 to action 1: name them with"):
            assert name_actions(id, {}).names == ("action 0", "action 1")
        return
    assert name_actions(id, {}).names == names
    assert name_actions(id, {}, given=["a", "b"]).names == ("a", "b")


@pytest.mark.parametrize(
    "value", [["left"], ["left", "left"], ["left", ""], "ab", [0, 1], {1: "left"}, property(lambda self: 1 / 0)]
)
def test_an_invalid_attribute_action_names_is_an_error(value: Any, request: pytest.FixtureRequest) -> None:
    name = f"Misnamed{request.node.callspec.indices['value']}"
    id = register_env(type(name, (Plain,), {"action_names": value, "actions": ["left", "right"]}))
    with pytest.raises(ConfigError, match=r"attribute action_names is .*, expected a list of 2 different, non-empty"):
        name_actions(id, {})
    assert name_actions(id, {}, given=["a", "b"]).names == ("a", "b")


@pytest.mark.parametrize("size", [np.int64(3), {1, 2}, {0: "a", "b": "c"}])
def test_arguments_may_be_any_object(size: Any) -> None:
    id = register_env(Plain)
    with closing(TextVectorEnv.make(id, 1, actions=["a", "b"], size=size)) as envs:
        assert envs.envs[0].unwrapped.size == size  # type: ignore[attr-defined]


def test_actions_that_do_not_start_at_0_are_refused() -> None:
    id = register_env(type("Shifted", (Plain,), {"action_space": Discrete(2, start=1)}))
    with pytest.raises(
        ConfigError, match=r"must start at 0: wrap the env, .* lambda action: action \+ 1, .*Discrete\(2\)\)"
    ):
        name_actions(id, {})
