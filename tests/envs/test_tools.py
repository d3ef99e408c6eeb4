"""Methods of a class as tools."""

import gc
import weakref
from typing import Any

import gymnasium
import pytest

from groundling.envs import ToolEnv
from groundling.envs.text_env import read_text_step
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from tests.envs.echo import Calculator, make_calculator

_CALL = '{"name": "multiply", "arguments": {"a": 3, "b": 4}}'


def _env(made: Any = Calculator, **args: Any) -> ToolEnv:
    env = ToolEnv(made, **args)
    env.reset(seed=1)
    return env


@pytest.mark.parametrize(
    ("text", "result", "calls"),
    [
        (_CALL, "12", (1, 0)),
        (f"I multiply. <tool_call>\n{_CALL}\n</tool_call>", "12", (1, 0)),
        (f"<tool_call>{_CALL}", "12", (1, 0)),
        (f"<tool_call>{_CALL}</tool_call><tool_call>{_CALL}</tool_call>", "12\n12", (2, 0)),
        (f"<tool_call>[{_CALL}, {_CALL}]</tool_call>", "12\n12", (2, 0)),
        (_CALL.replace("arguments", "parameters"), "12", (1, 0)),
        ('{"name": "fail"}', "Error: ValueError: out of order", (1, 0)),
        ('{"name": "multiply", "arguments": {"a": 3}}', "Error: multiply needs b", (0, 1)),
        (_CALL.replace("4", '"4"'), "Error: b must be a whole number, got '4'", (0, 1)),
        (_CALL.replace('"b"', '"c"'), "Error: the tool multiply has an unknown argument 'c': available: a, b", (0, 1)),
        (_CALL.replace("multiply", "divide"), "Error: there is no tool 'divide', only fail, multiply, wait", (0, 1)),
        (_CALL.replace("multiply", "__init__"), "Error: there is no tool '__init__', only", (0, 1)),
        (_CALL[:-1], "Error: the call is not JSON", (0, 1)),
        ("<tool_call>multiply 3 and 4</tool_call>", "Error: the call is not JSON", (0, 1)),
        ('{"tool": "multiply"}', "Error: a call must have the form", (0, 1)),
        ('{"name": "multiply", "arguments": [3, 4]}', "Error: a call must have the form", (0, 1)),
    ],
)
def test_a_call_is_answered_or_counted_as_invalid(text: str, result: str, calls: tuple[int, int]) -> None:
    observation, reward, terminated, truncated, info = _env().step(text)
    assert observation.startswith(result) and (reward, terminated, truncated) == (0, False, False)
    assert (info["metrics"]["tool_calls"], info["metrics"]["invalid_tool_calls"]) == calls
    assert "\n".join(info["descriptions"]) == observation


def test_a_text_without_a_call_is_the_final_answer_and_turns_are_limited() -> None:
    env = _env(max_turns=2)
    answer = str(env.environment.a * env.environment.b)
    assert env.step(answer)[1:4] == (1.0, True, False)
    task, info = env.reset(seed=1)
    assert task == "" and info["goal"].startswith("What is") and info["metrics"]["tool_calls"] == 0
    env.step(_CALL)
    assert env.step(_CALL)[1:4] == (0.0, False, True)


class Archive:
    """Tools whose results cannot be displayed without changes."""

    reward = 0.0

    def reset(self) -> None: ...

    def long(self) -> str:
        """Read everything."""
        return "x" * 2_000_000

    def broken(self) -> str:
        """Read bytes."""
        return "a\ud83db"

    def circular(self) -> Any:
        """Read a list of itself."""
        found: list[Any] = []
        found.append(found)
        return found


@pytest.mark.parametrize(
    ("tools", "end"),
    [
        (["long"], "xx… (cut off: 100,000 of 2,000,000 characters)"),
        (["long", "long"], "xx… (cut off: 50,000 of 2,000,000 characters)"),
        (["broken"], "a?b"),
        (["circular"], "Error: ValueError: Circular reference detected"),
    ],
)
def test_a_result_that_cannot_be_read_costs_only_the_turn(tools: list[str], end: str) -> None:
    observation, *_, info = _env(Archive).step(
        "".join(f'<tool_call>{{"name": "{tool}"}}</tool_call>' for tool in tools)
    )
    assert read_text_step(observation, info, "").descriptions[-1].endswith(end)


class Shop:
    """A reward that increases with calls, as in TRL's environments."""

    def reset(self, **kwargs: Any) -> None:
        self.reward, self.done, self.success = 0.0, False, False

    def buy(self, number: int = 1) -> dict[str, int]:
        """Buy bread.

        Args:
            number: The number of loaves.
        """
        self.reward += number
        self.done = self.success = self.reward >= 3
        return {"loaves": number}


def test_a_number_rewards_each_turn_and_done_ends_the_episode() -> None:
    env = _env(Shop)
    observation, reward, ended, _, info = env.step('{"name": "buy"}')
    assert (observation, reward, ended) == ('{"loaves": 1}', 1.0, False) and "success" not in info
    _, reward, ended, _, info = env.step('{"name": "buy", "arguments": {"number": 2}}')
    assert (reward, ended, info["success"]) == (2.0, True, True)


def test_tools_are_described_to_the_model() -> None:
    shown = read_text_step(*ToolEnv(Shop).reset(seed=0))
    assert shown.goal == "" and shown.descriptions == () and '"The number of loaves."' in shown.tools[0]


class _NoHints:
    reward = 0.0

    def reset(self) -> None: ...

    def buy(self, number) -> None:  # type: ignore[no-untyped-def]
        """Buy bread."""


class _Slow(Shop):
    async def sell(self) -> None:
        """Sell bread."""


class _NoTools:
    reward = 0.0

    def reset(self) -> None: ...


class _NoReward(Calculator):
    reward: Any = property(lambda self: self.missing)


class _BadReward(Shop):
    def reset(self, **kwargs: Any) -> None:
        self.reward = None  # type: ignore[assignment]


class _BadTask(Shop):
    def reset(self, **kwargs: Any) -> Any:
        self.reward = 0.0
        return 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Archive(), r"ToolEnv must be given a class, as in ToolEnv\(Archive\), got an instance of Archive"),
        (_NoHints, r"_NoHints\.buy cannot be described to a model .* \"name: description\" under \"Args:\""),
        (_Slow, r"_Slow\.sell is asynchronous: define it with def"),
        (_NoTools, "no public method that could be a tool"),
        (_NoReward, r"no reward: set self\.reward = 0\.0 in reset"),
        (_BadReward, r"_BadReward\.reward must be, or return, a number, got None"),
        (_BadTask, r"_BadTask\.reset must return the task as a string, or None, got 3"),
    ],
)
def test_unsuitable_classes_are_refused_in_one_line(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        _env(made)
    assert "\n" not in str(refused.value)


def test_step_needs_a_reset_and_a_string() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step, to start an episode of Shop"):
        ToolEnv(Shop).step("")
    with pytest.raises(ConfigError, match=r"an action must be a string .* got None"):
        _env(Shop).step(None)  # type: ignore[arg-type]


def test_a_tool_that_never_returns_ends_its_episode() -> None:
    warnings: list[str] = []
    envs = TextVectorEnv(make_calculator, 1, (), lambda i, k: k, num_workers=1, timeout=2, warn=warnings.append)
    envs.reset()
    envs.step([_CALL])
    step = envs.step(['{"name": "wait"}'])
    envs.close()
    assert step.truncated.all() and step.episodes[0].actions == (_CALL,)
    assert any("twice at this step; the episode is cut off" in warning for warning in warnings)


class Lamp:
    """A tool whose success and end are methods."""

    reward = 0.0

    def reset(self) -> None:
        self.steps = 0

    def wait(self) -> None:
        """Wait."""
        self.steps += 1

    def done(self) -> bool:
        return self.steps == 2

    def success(self) -> bool:
        return False


def test_success_and_done_may_be_methods() -> None:
    env = _env(Lamp)
    assert env.step('{"name": "wait"}')[2] is False
    _, _, ended, _, info = env.step('{"name": "wait"}')
    assert ended and info["success"] is False


def test_an_env_does_not_outlive_its_use() -> None:
    env = _env(Lamp)
    env.step('{"name": "wait"}')
    object = weakref.ref(env.environment)
    del env
    gc.collect()
    assert object() is None
