"""Tools: the public methods of a class, which a language model calls by writing JSON."""

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium

from groundling.envs.text_env import as_truth
from groundling.errors import ConfigError
from groundling.registry import check_arguments, missing_arguments

_LONGEST = 1_000_000  # Maximum number of characters in observations and actions
_RESULTS = 100_000  # Maximum number of characters in a turn's results; the rest of each is cut off
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class InvalidCall(Exception):
    """A call that is not JSON, names an unknown tool or has invalid arguments; the model sees the message."""


class ToolEnv(gymnasium.Env[str, str]):
    """Lets a language model call the methods of an object, as TRL's ``environment_factory`` does.

    Public methods with type hints, and with docstrings whose ``Args`` describe each argument, are tools; see
    ``examples/calculator.py``. Some members have a special meaning:

    - ``reset`` starts an episode and may return its task as text. It receives the ``seed`` if it accepts an argument
      of that name or ``**kwargs``.
    - ``reward`` is a number that may change at each call, or a method that is called at the end of an episode. If the
      method has an argument, it receives the final answer, or "" if it is missing.
    - ``done`` ends the episode if it is true after a call; ``success`` is true if the episode succeeded. Both are
      optional, and each may be a method without arguments.

    An action may contain calls, as ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` or as JSON without the
    tags. Their results are the next observation; long results are cut off. If a call is invalid or a tool raises, the
    observation is an error message. An action without a call is the final answer. The metrics ``tool_calls`` and
    ``invalid_tool_calls`` count an episode's calls. If a tool may never return, step the envs in workers
    (``world.num_workers``), which have a timeout.

    Args:
        make: The object's class, or a function without arguments that creates the object.
        max_turns: Number of actions after which an episode is truncated.

    Raises:
        ConfigError: A method cannot be described to a model, or the object lacks ``reset``, ``reward`` or tools.
    """

    def __init__(self, make: Callable[[], Any], max_turns: int = 8) -> None:
        self.observation_space = self.action_space = gymnasium.spaces.Text(_LONGEST, min_length=0)
        if not callable(make):
            name = type(make).__name__
            raise ConfigError(f"ToolEnv must be given a class, as in ToolEnv({name}), got an instance of {name}")
        self.environment, self._max_turns = make(), max_turns
        self._turns: int | None = None  # Number of turns in this episode; None before the first reset
        self._name = type(self.environment).__name__
        self._tools = dict(self._find_tools())
        if not self._tools or not hasattr(self.environment, "reset"):
            lacks = "no reset" if self._tools else "no public method that could be a tool"
            raise ConfigError(f"{self._name} has {lacks}: see groundling.envs.ToolEnv")
        self._schemas = [_schema_of(f"{self._name}.{name}", tool) for name, tool in self._tools.items()]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        given = inspect.signature(self.environment.reset).parameters
        takes_seed = "seed" in given or any(one.kind is one.VAR_KEYWORD for one in given.values())
        task = self.environment.reset(**({"seed": seed} if takes_seed else {}))
        if not isinstance(task, str | None):
            raise ConfigError(f"{self._name}.reset must return the task as a string, or None, got {task!r:.80}")
        self._turns = self._calls = self._invalid = 0
        if not hasattr(self.environment, "reward"):
            raise ConfigError(f"{self._name} has no reward: set self.reward = 0.0 in reset, or define a method")
        self._rewarded = 0.0 if callable(self.environment.reward) else self._number(self.environment.reward)
        return "", {"goal": task or "", **self._info([])}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._turns is None:
            raise gymnasium.error.ResetNeeded(f"call reset before step, to start an episode of {self._name}")
        if not isinstance(action, str):
            raise ConfigError(f"an action must be a string with calls or the final answer, got {action!r:.80}")
        self._turns += 1
        # Calls are enclosed in tags, or the whole text is a call; any other text is the final answer.
        texts = _TAGGED.findall(action) or ([action] if action.lstrip().startswith(("{", "[{")) else [])
        results = [result for text in texts for result in self._results(text)]
        results = [_readable(result, _RESULTS // len(results)) for result in results]
        ended = not texts or self._is("done")
        cut = not ended and self._turns >= self._max_turns
        reward = (
            self._reward("" if texts else action) if ended or cut or not callable(self.environment.reward) else 0.0
        )
        info = self._info(results)
        if (ended or cut) and hasattr(self.environment, "success"):
            info["success"] = self._is("success")
        return "\n".join(results), reward, ended, cut, info

    def _find_tools(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        for name, function in inspect.getmembers(type(self.environment), inspect.isroutine):
            if name.startswith("_") or name in ("reset", "reward", "done", "success"):
                continue
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"the tool {self._name}.{name} is asynchronous: define it with def")
            yield name, getattr(self.environment, name)

    def _results(self, text: str) -> Iterator[str]:
        """Yield the result of a call, or the results of a list of calls."""
        try:
            for call in _parse(text):
                yield self._result(*_name_and_arguments(call))
        except InvalidCall as error:
            self._invalid += 1
            yield f"Error: {error}"

    def _result(self, name: str, arguments: dict[str, Any]) -> str:
        if (tool := self._tools.get(name)) is None:
            raise InvalidCall(f"there is no tool {name!r:.80}, only {', '.join(self._tools)}")
        signature = _without_object(tool.__func__) if inspect.ismethod(tool) else tool
        try:
            check_arguments(signature, arguments, f"the tool {name}")
        except ConfigError as error:
            raise InvalidCall(str(error)) from None
        if missing := missing_arguments(signature, arguments):
            raise InvalidCall(f"{name} needs {', '.join(missing)}")
        self._calls += 1
        try:
            result = tool(**arguments)
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except (Exception, SystemExit) as error:  # shown to the model; training continues
            return f"Error: {type(error).__name__}: {error}"

    def _reward(self, answer: str) -> float:
        """Return the whole episode's reward if ``reward`` is a method, otherwise the change in its value."""
        reward = self.environment.reward
        if callable(reward):
            return self._number(reward(*[answer][: len(inspect.signature(reward).parameters)]))
        before, self._rewarded = self._rewarded, self._number(reward)
        return self._rewarded - before

    def _is(self, name: str) -> bool:
        """Return ``done`` or ``success``; False if it is missing."""
        value = getattr(self.environment, name, False)
        value = (value() if callable(value) else value) or False
        if (truth := as_truth(value)) is None:
            raise ConfigError(f"{self._name}.{name} must be, or return, True or False (or 1 or 0), got {value!r:.80}")
        return truth

    def _number(self, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError):
            raise ConfigError(f"{self._name}.reward must be, or return, a number, got {reward!r:.80}") from None

    def _info(self, results: list[str]) -> dict[str, Any]:
        counts = {"tool_calls": self._calls, "invalid_tool_calls": self._invalid}
        lines = [line for result in results for line in result.split("\n")]
        return {"descriptions": lines, "tools": self._schemas, "metrics": counts}


@functools.cache
def _without_object(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method's function without its first argument. `check_arguments` caches signatures, and those of bound
    methods would keep every env's object alive.
    """
    return functools.partial(function, None)


def _schema_of(where: str, tool: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a method; raise `ConfigError` if its hints or docstring are incomplete."""
    from transformers.utils import chat_template_utils

    try:
        schema: dict[str, Any] = chat_template_utils.get_json_schema(tool)
    except (chat_template_utils.DocstringParsingException, chat_template_utils.TypeHintParsingException) as error:
        raise ConfigError(
            f"the tool {where} cannot be described to a model ({' '.join(str(error).split())}): give each argument a "
            'type hint and a line "name: description" under "Args:" in the docstring, or start the tool\'s name with _'
        ) from error
    return schema


def _readable(result: str, most: int) -> str:
    """Replace characters that UTF-8 cannot encode, and cut the result off after ``most`` characters."""
    shown = result[:most].encode("utf-8", "replace").decode()
    return shown if len(result) <= most else f"{shown}… (cut off: {most:,} of {len(result):,} characters)"


def _parse(text: str) -> list[Any]:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidCall(f"the call is not JSON ({error}): {text.strip()!r:.80}") from None
    return call if isinstance(call, list) else [call]


def _name_and_arguments(call: Any) -> tuple[str, dict[str, Any]]:
    """Return a call's tool name and arguments, which Llama calls ``parameters``."""
    if isinstance(call, Mapping) and isinstance(name := call.get("name"), str):
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, dict):
            return name, arguments
    raise InvalidCall('a call must have the form {"name": NAME, "arguments": {NAME: VALUE}}')
