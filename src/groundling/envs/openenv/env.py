"""A text env that runs on an OpenEnv server (https://github.com/meta-pytorch/OpenEnv)."""

import importlib.util
import json
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, NoReturn
from urllib.parse import urlsplit

import gymnasium

from groundling.envs.text_env import FAILURES, GOALS, SUCCESSES
from groundling.envs.worker_pool import EnvLost
from groundling.errors import ConfigError, RunError, warn_caller

PREFIX = "openenv:"
_MEGABYTES = 1.0  # Maximum size of a response
_CONNECT_SECONDS = 10.0
_MOST_LOSSES = 5  # Maximum number of losses without a step in between
_FULL, _REJECTED = "CAPACITY_REACHED", "VALIDATION_ERROR"  # OpenEnv's error codes
_FIELD = re.compile(r"\{([\w.-]+)\}")


class ServerStep(NamedTuple):
    observation: dict[str, Any]
    reward: float
    done: bool


class MissingField(LookupError):
    """An observation lacks a field; the argument is its path."""


class OpenEnv(gymnasium.Env[dict[str, Any], str]):
    """An environment that runs on an OpenEnv server. Only JSON is accepted from the server.

    Fields of the observation are specified by their path, such as ``prompt``, ``metadata.status`` or
    ``messages.-1.content``. If the connection is lost, the next reset waits for the server.

    Args:
        url: Address of the server, such as ``http://127.0.0.1:8000``.
        action: Name of the action's field that the agent sets.
        constants: Values of the action's other fields, the same for every action.
        admissible: Field that lists the admissible values of ``action``, or the list itself; None to allow any text.
        names: Names for the values, such as ``{0: up, 1: down}``.
        goal: The goal; ``{field}`` is replaced with a field's value at reset. Default: the observation's goal, if any.
        descriptions: Names of fields, or sentences with ``{field}``. By default, all fields except the goal, the
            actions and the metadata.
        reset: Arguments of every reset, in addition to the seed.
        max_steps: Number of steps after which an episode is truncated.
        timeout: Seconds to wait for a response, or for a lost server to become available again.

    Raises:
        ConfigError: The package is missing, an argument is invalid, or the server is unreachable or has too few sessions.
        EnvLost: The server failed or sent invalid data. The env can be reset.
        RunError: The server failed several times without a step in between.
    """

    remote: ClassVar[bool] = True
    """The env can be lost even without worker processes, and the same seed may produce different episodes."""

    def __init__(
        self,
        url: str,
        *,
        action: str,
        constants: Mapping[str, Any] | None = None,
        admissible: str | Sequence[Any] | None = None,
        names: Mapping[Any, str] | None = None,
        goal: str | None = None,
        descriptions: Sequence[str] | None = None,
        reset: Mapping[str, Any] | None = None,
        max_steps: int = 100,
        timeout: float = 60.0,
    ) -> None:
        check_url(url)
        for name, value in {"constants": constants, "names": names, "reset": reset}.items():
            if not isinstance(value, Mapping | None):
                raise ConfigError(
                    f"world.args.{name} must be a mapping, got {value!r:.60}: quote it, 'world.args.{name}={{key: value}}'"
                )
        if isinstance(descriptions, str):
            raise ConfigError(f"world.args.descriptions must be a list, got {descriptions!r:.60}: put it in brackets")
        if names and admissible is None:
            raise ConfigError("world.args.names has no effect without world.args.admissible, which lists the values")
        if action in (constants or {}):
            raise ConfigError(f"world.args.constants sets {action!r}, which the agent sets: remove it")
        if "seed" in (reset or {}):
            raise ConfigError("world.args.reset sets the seed, but each episode has its own seed: remove it")
        if max_steps < 1 or not timeout > 0:
            raise ConfigError(f"max_steps and timeout of world.args must be positive, got {max_steps} and {timeout:g}")
        self.url, self.max_steps, self.takes_any_text = url, max_steps, admissible is None
        self._action, self._constants, self._admissible = action, dict(constants or {}), admissible
        self._names = {_text(value): name for value, name in (names or {}).items()}
        self._goal_template, self._descriptions, self._reset = goal, descriptions, dict(reset or {})
        self._timeout = timeout
        self._client: Any = None  # OpenEnv's client; None before the first episode and after a loss
        self._socket: Any = None  # the client's connection, which is the session
        self._has_answered, self._losses = False, 0
        self._values: dict[str, Any] = {}  # the admissible values by name
        self._goal: str | None = None
        self._first: dict[str, Any] | None = None  # the first observation, until a different one is received
        self.observation_space = gymnasium.spaces.Dict()
        self.action_space = gymnasium.spaces.Text(100_000, charset=string.printable)

    def __str__(self) -> str:
        return PREFIX + self.url

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._connect()
        given = self._reset if seed is None else {**self._reset, "seed": seed}
        answer = self._ask("reset", lambda: self._client.reset(**given))
        self._socket = self._client.async_client._ws
        self._steps, self._goal, self._first = 0, None, answer.observation
        try:
            if self._goal_template is not None:
                self._goal = _filled(self._goal_template, answer.observation)
            return answer.observation, self._info(answer)
        except MissingField as missing:
            why = f"the observation of {self} has no field {missing}, which world.args uses; its fields: "
            raise ConfigError(why + ", ".join(map(str, answer.observation))[:200]) from None

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self._client is None:
            raise EnvLost("has no session: reset it")
        if self._admissible is not None and action not in self._values:  # without seeds, replays diverge
            self._lose(f"does not list the action {action!r:.60}")
        sent = {**self._constants, self._action: action if self._admissible is None else self._values[action]}
        answer = self._ask("step", lambda: self._client.step(sent))
        if self._client.async_client._ws is not self._socket:  # the client has reconnected, but the episode is lost
            self._lose("lost its session, which the server closed")
        self._steps += 1
        try:
            info = self._info(answer)
        except MissingField as missing:
            self._lose(f"sent an observation without {missing}")
        self._losses = 0
        truncated = not answer.done and self._steps >= self.max_steps
        if self._first is not None and answer.observation != self._first:
            self._first = None
        elif self._first is not None and truncated:
            warn_caller(f"{self} returned the same observation for {self._steps} steps")
        return answer.observation, answer.reward, answer.done, truncated, info

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # the server may be gone
                client.close()

    def _connect(self) -> None:
        """Open a session unless one is open; wait for the server if it has responded before."""
        if self._client is not None:
            return
        try:
            self._client = open_client(self.url, self._timeout, self._timeout if self._has_answered else 0.0)
        except ConfigError as error:
            if not self._has_answered:
                raise
            self._lose(f"did not become available again: {error}")

    def _ask(self, what: str, call: Callable[[], Any]) -> ServerStep:
        """Return a validated response; close the session and raise `EnvLost` if it is missing or invalid."""
        try:
            result = call()
            observation, reward, done = result.observation, result.reward, result.done
            json.dumps(observation, allow_nan=False)
        except TimeoutError:
            self._lose(f"did not respond to a {what} within {self._timeout:g} s")
        except ConnectionError as error:
            self._lose(f"lost the connection: {_line(error)}")
        except json.JSONDecodeError as error:
            self._lose(f"did not respond to a {what} with JSON: {error.doc[:60]!r}")
        except ValueError:
            self._lose("sent an observation with NaN or infinity")
        except Exception as error:  # from the client, for unexpected frames, or from the connection
            if what == "step" and _REJECTED in str(error):
                raise ConfigError(
                    f"{self} rejects the action's fields {', '.join([self._action, *self._constants])}: set "
                    f"world.args.action, .constants and .admissible as `groundling check-env {self}` proposes"
                ) from None
            self._lose(f"failed during a {what}: {type(error).__name__}: {_line(error)}")
        if not isinstance(observation, dict):
            self._lose(f"sent the observation {observation!r:.60}: expected a mapping")
        reward = 0 if reward is None else reward
        if not isinstance(reward, int | float) or not abs(reward) < 1e30:  # also NaN
            self._lose(f"sent the reward {reward!r:.60}: expected a finite number")
        if not isinstance(done, bool):
            self._lose(f"sent done={done!r:.60}: expected true or false")
        self._has_answered = True
        return ServerStep(observation, float(reward), done)

    def _lose(self, reason: str) -> NoReturn:
        self.close()
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise RunError(f"{self} failed {self._losses} times without a step in between; most recently, it {reason}")
        raise EnvLost(reason)

    def _info(self, answer: ServerStep) -> dict[str, Any]:
        """Return the info, or raise `MissingField`; the last observation of an episode may lack fields."""
        observation = answer.observation
        given = {**_mapping(observation.get("metadata")), **observation}
        info: dict[str, Any] = {"task": "openenv"}
        info |= {name: given[name] for name in (*SUCCESSES, *FAILURES) if isinstance(given.get(name), bool)}
        if self._goal is not None:
            info["goal"] = self._goal
        info["descriptions"] = self._sentences(observation, answer.done)
        if self._admissible is not None:
            self._values = self._read_values(observation, answer.done)
            info["actions"] = [*self._values]
        return info

    def _sentences(self, observation: Mapping[str, Any], done: bool) -> list[str]:
        entries = self._descriptions
        if entries is None:
            hidden = {"metadata", *GOALS, str(self._admissible).partition(".")[0]}
            entries = [name for name, value in observation.items() if name not in hidden and value not in _NOTHING]
        sentences = []
        for entry in entries:
            try:
                sentence = _filled(entry, observation) if "{" in entry else _text(field(observation, entry))
            except MissingField:
                if not done:
                    raise
                continue
            if "{" not in entry and len(entries) > 1:
                sentence = f"{entry.rpartition('.')[2].replace('_', ' ')}: {sentence}"
            sentences += sentence.rstrip().split("\n")
        return sentences

    def _read_values(self, observation: Mapping[str, Any], done: bool) -> dict[str, Any]:
        """Return the admissible values, keyed by the names that the agent reads."""
        values = self._admissible
        if isinstance(values, str):
            try:
                values = field(observation, values)
            except MissingField:
                if not done:
                    raise
                values = []
        if not isinstance(values, list | tuple):
            self._lose(f"sent {values!r:.60} as {self._admissible}: expected a list")
        words = [self._names.get(_text(value), _text(value)) for value in values]
        if len(set(words)) < len(words) or not (words or done):
            self._lose(f"sent {values!r:.60} as {self._admissible}: expected distinct values")
        return dict(zip(words, values, strict=True))


def open_client(url: str, timeout: float, patience: float, closing: float = 5.0) -> Any:
    """Return an OpenEnv client with an open session.

    Args:
        timeout: Seconds to wait for a response.
        patience: Seconds to wait for a server that refuses the connection.
        closing: Seconds to wait for a free session, since a server still counts a session briefly after it is closed.

    Raises:
        ConfigError: The package is missing, no server answers, or it has no free session.
    """
    if importlib.util.find_spec("openenv") is None:
        raise ConfigError("OpenEnv is not installed: pip install 'groundling[openenv]'")
    from openenv.core import GenericEnvClient

    started = time.monotonic()
    while True:
        client = GenericEnvClient(
            url,
            connect_timeout_s=_CONNECT_SECONDS,
            message_timeout_s=timeout,
            max_message_size_mb=_MEGABYTES,
            mode="simulation",
        ).sync()
        try:
            client.connect()
            client.state()  # a full server accepts the connection, and then closes it
            return client
        except ConnectionError as error:
            limit, problem = patience, f"no OpenEnv server answers at {url}: {_line(error)}"
        except Exception as error:
            if _FULL not in str(error):  # a server may have no state
                return client
            limit = max(patience, closing)
            problem = (
                f"{PREFIX}{url} has no free session ({_line(error)}): start it with a larger max_concurrent_envs, or "
                "lower world.num_envs and evaluation.num_envs"
            )
        with suppress(Exception):
            client.close()
        if time.monotonic() - started >= limit:
            raise ConfigError(problem)
        time.sleep(0.2)


_NOTHING: tuple[Any, ...] = (None, "", [], {})


def check_url(url: str) -> None:
    """Raise `ConfigError` unless ``url`` is an address with a scheme and a host."""
    with suppress(ValueError):  # e.g. for an invalid port
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0:
            return
    raise ConfigError(f"world.env={PREFIX}{url:.80} is not a server: expected {PREFIX}http://HOST:PORT")


def field(observation: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path, in which a number is a list index; raise `MissingField` if it is missing."""
    value: Any = observation
    for name in path.split("."):
        try:
            value = value[int(name)] if isinstance(value, list) else _mapping(value)[name]
        except (LookupError, ValueError):
            raise MissingField(path) from None
    return value


def _filled(template: str, observation: Mapping[str, Any]) -> str:
    # str.format would be unsafe: templates could access attributes and pad without limit.
    return _FIELD.sub(lambda match: _text(field(observation, match[1])), template)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _line(error: object) -> str:
    return " ".join(str(error).split())[:200]
