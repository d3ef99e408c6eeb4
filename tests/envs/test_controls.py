"""Controls of the goal in any text env."""

import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import pytest

from groundling.envs.controls import CONTROLS, NEUTRAL, using
from groundling.envs.make import TextEnvMaker, make_text_env
from groundling.envs.seeds import held_out_seed
from groundling.envs.text_env import GoalKey
from groundling.errors import ConfigError, ForeignError, UnknownEnv
from tests.envs import doors, echo  # noqa: F401  (register envs)

_SEEDS = [held_out_seed(number) for number in range(12)]
_DOORS = "test/Doors-v0"


class Order(gymnasium.Env[Any, Any]):
    """Fetch two of four things; observations repeat the order, and the env knows which one was carried out."""

    observation_space = action_space = gymnasium.spaces.Text(1000)
    key = "goal"

    def __init__(self, others: Any = None) -> None:
        self.others = others

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.wanted, self.taken = str(self.np_random.choice(["key", "ball", "box"])), ""
        return self.see(), {self.key: f"fetch the {self.wanted}"}

    def see(self) -> Any:
        return f"Order: fetch the {self.wanted}.\nA {self.wanted} is here"

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken = action
        return self.see(), float(action == self.wanted), True, False, {"metrics": {"letters": len(action)}}

    def other_goals(self) -> Any:
        if self.others == "raise":
            raise ValueError("no such goal")
        return ["fetch the hat", f"fetch the {self.wanted}"] if self.others is None else self.others

    def achieves(self, goal: str) -> bool:
        return goal == f"fetch the {self.taken}"


class Silent(Order):
    """The goal is only in the observation."""

    key = "order"


class Own(Order):
    """An env with its own control."""

    def __init__(self, control: str | None = None) -> None:
        super().__init__()
        self.control = control

    def see(self) -> Any:
        return f"control={self.control}"


for _made in (Order, Silent, Own):
    gymnasium.register(f"test/{_made.__name__}-v0", entry_point=_made)


def _goals(id: str, control: str | None, **args: Any) -> list[str]:
    env = make_text_env(id, control=control, **args)
    return [env.reset(seed=seed)[1]["goal"] for seed in _SEEDS]


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_changes_every_goal_by_seed_and_nothing_else(control: str) -> None:
    true = _goals(_DOORS, None)
    shown = _goals(_DOORS, control)
    assert all(one != other for one, other in zip(true, shown, strict=True))
    assert shown == _goals(_DOORS, control)  # also in another instance
    env = make_text_env(_DOORS, control=control)
    assert shown[::-1] == [env.reset(seed=seed)[1]["goal"] for seed in _SEEDS[::-1]]  # in any order
    plain = make_text_env(_DOORS)
    for seed in _SEEDS[:3]:
        (seen, info), (controlled, changed) = plain.reset(seed=seed), env.reset(seed=seed)
        assert (seen, info["actions"]) == (controlled, changed["actions"])
        action = info["actions"][0]
        one, other = plain.step(action), env.step(action)
        assert one[:4] == other[:4] and other[4]["goal"] == changed["goal"]


def test_the_shown_goals() -> None:
    true = _goals(_DOORS, None)
    assert set(_goals(_DOORS, "swapped")) <= set(true)
    assert set(_goals(_DOORS, "dropped")) == {NEUTRAL}
    for goal, shown in zip(true, _goals(_DOORS, "scrambled"), strict=True):
        assert [sorted(word) for word in shown.split()] == [sorted(word) for word in goal.split()]
    words = {word for goal in true for word in goal.split()}
    for goal, shown in zip(true, _goals(_DOORS, "corrupted"), strict=True):
        assert set(shown.split()) <= words - set(goal.split())


def test_an_env_may_propose_goals_and_tell_whether_the_shown_one_was_reached() -> None:
    env = make_text_env("test/Order-v0", control="swapped")
    for action, shown_success in (("hat", 1.0), ("key", 0.0)):
        observation, info = env.reset(seed=_SEEDS[0])
        assert info["goal"] == "fetch the hat"
        assert observation.startswith("Order: fetch the hat.") and info["descriptions"] == observation.split("\n")
        info = env.step(action)[-1]
        assert info["metrics"] == {"letters": 3, "shown_success": shown_success}
    env = make_text_env("test/Order-v0", control="dropped")
    env.reset(seed=0)
    assert "shown_success" not in env.step("hat")[-1]["metrics"]


def test_tools_minigrid_and_a_goal_from_another_key() -> None:
    gymnasium.registry.pop("test/Tools-v0", None)
    gymnasium.register("test/Tools-v0", entry_point=echo.make_calculator)
    assert all(re.fullmatch(r"What is \d \* \d\?", goal) for goal in _goals("test/Tools-v0", "swapped"))
    assert all(re.search("get|fetch", goal) for goal in _goals("MiniGrid-Fetch-5x5-N2-v0", "swapped"))
    maker = TextEnvMaker("test/Silent-v0", {"control": "scrambled"}, goal=GoalKey("order"))
    assert re.fullmatch(r"\w{5} the \w{3}", maker().reset(seed=_SEEDS[0])[1]["goal"])


def test_an_env_with_its_own_control_keeps_it() -> None:
    assert make_text_env("test/Own-v0", control="swapped").reset(seed=0)[0] == "control=swapped"
    assert make_text_env("test/Own-v0", control="corrupted").reset(seed=0)[0] == "control=None"


def test_goals_that_cannot_be_controlled() -> None:
    for control in CONTROLS:
        with pytest.raises(ConfigError, match=r"has no goal, so there is nothing to control: .*--other-goal"):
            make_text_env("test/Silent-v0", control=control).reset(seed=0)
    for control in ("swapped", "corrupted"):
        with pytest.raises(ConfigError, match="64 episodes all have the goal 'repeat the word'"):
            make_text_env("test/Echo-v0", control=control).reset(seed=0)
    with pytest.raises(ConfigError, match="unknown control 'swap': did you mean 'swapped'"):
        make_text_env(_DOORS, control="swap")
    fixed = TextEnvMaker(_DOORS, {"control": "scrambled"}, goal="do nothing")
    assert fixed().reset(seed=0)[1]["goal"].startswith("do ")
    with pytest.raises(ConfigError, match="cannot change the goal 'aa': it has no suitable words"):
        TextEnvMaker(_DOORS, {"control": "scrambled"}, goal="aa")().reset(seed=0)


@pytest.mark.parametrize("others", ["red", [1], ["fetch", " "], None, 3])
def test_invalid_proposals(others: Any) -> None:
    env = make_text_env("test/Order-v0", control="swapped", others=others)
    if others is None:
        assert env.reset(seed=0)
        return
    with pytest.raises(ConfigError, match=r"other_goals of .* must return a list of non-empty strings, got"):
        env.reset(seed=0)


def test_a_proposal_that_raises_is_the_users_error() -> None:
    with pytest.raises(ForeignError, match=r"other_goals of .* raised ValueError"):
        make_text_env("test/Order-v0", control="swapped", others="raise").reset(seed=0)


def test_without_proposals_another_episodes_goal_is_shown() -> None:
    assert set(_goals("test/Order-v0", "swapped", others=[])) <= {f"fetch the {it}" for it in ("key", "ball", "box")}


def _swapped_by(function: Any, id: str = _DOORS) -> gymnasium.Env[Any, Any]:
    with using("mine", function):
        return make_text_env(id, control="swapped", other_goal="mine")


def test_a_users_function_returns_the_goal_or_changes_the_observation() -> None:
    def other(goal: str, observation: Any, info: Mapping[str, Any]) -> str:
        assert goal.startswith("open ") and info["actions"]
        return "open the window"

    assert _swapped_by(other).reset(seed=0)[1]["goal"] == "open the window"
    env = _swapped_by(lambda goal, seen, info: re.sub("key|ball|box", "hat", seen), "test/Silent-v0")
    for info in (env.reset(seed=0)[1], env.step("hat")[-1]):
        assert info["goal"] == "" and info["descriptions"] == ["Order: fetch the hat.", "A hat is here"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "must return a goal other than 'open .*', got None"),
        ("same", "must return a goal other than 'open (.*)', got 'open "),
        (3, "got 3"),
        (" ", "got ' '"),
        (["open"], r"got \['open'\]"),
    ],
)
def test_invalid_results_of_a_users_function(value: Any, message: str) -> None:
    env = _swapped_by(lambda goal, observation, info: goal if value == "same" else value)
    with pytest.raises(ConfigError, match=f"the function mine {message}" if "must" in message else message):
        env.reset(seed=0)


def test_a_users_function_that_fails() -> None:
    with pytest.raises(ForeignError, match="the function mine raised KeyError"):
        _swapped_by(lambda goal, observation, info: info["nothing"]).reset(seed=0)
    with pytest.raises(ConfigError, match="each observation's text with a different goal in it"):
        _swapped_by(lambda goal, observation, info: observation, "test/Silent-v0").reset(seed=0)
    with pytest.raises(ConfigError, match="must be a function of goal, observation and info, got 'goal'"):
        _swapped_by("goal")
    with pytest.raises(UnknownEnv, match="not loaded in this process: pass --other-goal"):
        make_text_env(_DOORS, control="swapped", other_goal="nobody's")
