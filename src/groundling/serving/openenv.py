"""Text worlds as OpenEnv environments (https://github.com/meta-pytorch/OpenEnv), for trainers that use its clients."""

import functools
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any

import gymnasium
from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

import groundling
from groundling.envs.make import inspect_env
from groundling.envs.text_env import read_reset, read_step, read_success, read_text_step
from groundling.envs.text_episode import read_first_interaction, read_metrics
from groundling.errors import ConfigError, GroundlingError, RunError, unknown
from groundling.serving.http import AccessControl
from groundling.serving.text_worlds import ServedWorld, served_worlds

_NUM_SEEDS, _NUM_TRAINING_SEEDS = 2**31, 2**30  # see `groundling.envs.text_episode`


class TextAction(Action):
    """The agent's next action."""

    action: Annotated[StrictStr, Field(max_length=100_000)] | StrictInt = Field(
        description="One of the observation's actions, as text or as a zero-based index; any text if none are listed"
    )


class ServedObservation(Observation):
    """An observation; its metadata contains the seed and suite and, at the end of the episode, the env's metrics."""

    goal: str = Field(description="The goal of the episode; empty if it has none")
    text: str = Field(description="The current observation, one sentence per line")
    actions: list[str] = Field(description="The admissible actions; empty if actions are free text")
    success: bool | None = Field(default=None, description="True if the episode succeeded; null until it ends")


class ResetOptions(BaseModel):
    """The arguments of a client's ``reset``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: int | None = Field(default=None, ge=0, lt=_NUM_SEEDS)
    episode_id: str | None = Field(default=None, max_length=255)
    suite: str | None = None


class TextEnvironment(Environment[TextAction, ServedObservation, State]):
    """A client's session, which plays one episode after another in its own env.

    Args:
        worlds: The world for each suite that a client may choose; None maps to the unchanged world.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, worlds: Mapping[str | None, ServedWorld]) -> None:
        super().__init__()
        self._worlds = worlds
        self._env: gymnasium.Env[Any, Any] | None = None
        self._options, self._steps, self._is_running = ResetOptions(), 0, False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> ServedObservation:
        """Start an episode. A seed always yields the same episode; without one, it is drawn from the training seeds.

        Raises:
            ConfigError: An option is unknown or has an invalid value.
            RunError: The env raised an error.
        """
        try:
            asked = ResetOptions(seed=seed, episode_id=episode_id, **options)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"reset: {wrong['loc'][0]}={wrong['input']!r:.80}: {wrong['msg']}") from None
        if asked.suite not in self._worlds:
            raise ConfigError(unknown("suite", str(asked.suite)[:80], filter(None, self._worlds)))
        asked.seed = secrets.randbelow(_NUM_TRAINING_SEEDS) if asked.seed is None else asked.seed
        if self._env is None or asked.suite != self._options.suite:
            self.close()
            self._world = self._worlds[asked.suite]
            config = self._world.config
            self._names = self._world.names
            self._num_actions = inspect_env(config.env, config.args, config.language).num_actions
            self._env = self._world.make_env()
        self._options, self._steps, self._is_running = asked, 0, False
        raw, info = read_reset(self._ask("reset", functools.partial(self._env.reset, seed=asked.seed)))
        self._shown = read_text_step(raw, info, has_lists=self._names is None)
        self._is_running = True
        return self._observed({"tools": [*self._shown.tools]} if self._shown.tools else {})

    def step(self, action: TextAction, timeout_s: float | None = None, **options: Any) -> ServedObservation:
        """Take an action.

        Raises:
            ConfigError: No episode is running, or the action is not admissible, in which case the episode continues.
            RunError: The env raised an error, which ends the episode.
        """
        if self._env is None or not self._is_running:
            raise ConfigError("no episode is running: call reset first")
        chosen = self._choose(action.action)
        self._is_running = False  # in case the env raises an error
        returned = self._ask("step", functools.partial(self._env.step, chosen))
        raw, reward, terminated, truncated, info = read_step(returned)
        self._shown = read_text_step(raw, info, self._shown.goal, has_lists=self._names is None)
        self._steps += 1
        truncated = truncated or (not terminated and self._steps == self._world.config.step_limit)
        if not (terminated or truncated):
            self._is_running = True
            return self._observed({}, reward=reward)
        first = read_first_interaction(info)
        figures = {**({} if first is None else first.figures), **read_metrics(info)}
        success = read_success(info, terminated and reward > 0)
        return self._observed({"truncated": truncated, "figures": figures}, reward=reward, done=True, success=success)

    @property
    def state(self) -> State:
        return State(step_count=self._steps, **self._options.model_dump())

    def get_metadata(self) -> EnvironmentMetadata:
        about = f"A Groundling text world. reset accepts seed and suite: {', '.join(filter(None, self._worlds))}"
        return EnvironmentMetadata(
            name=self._worlds[None].config.env, description=about, version=groundling.__version__
        )

    def close(self) -> None:
        env, self._env, self._is_running = self._env, None, False
        if env is not None:
            self._ask("close", env.close)

    def _observed(self, more: Mapping[str, Any], **result: Any) -> ServedObservation:
        reads, options = self._world.reads, self._options
        return ServedObservation(
            goal=reads(self._shown.goal),
            text=reads("\n".join(self._shown.descriptions)),
            actions=[reads(name) for name in self._admissible()],
            metadata={"seed": options.seed, "suite": options.suite, **more},
            **result,
        )

    def _admissible(self) -> Sequence[str]:
        return (self._shown.actions or ()) if self._names is None else self._names

    def _choose(self, action: str | int) -> str | int:
        """Return the argument of the env's ``step``; raise `ConfigError` if the action is not admissible."""
        admissible = self._admissible()
        texts = [self._world.reads(name) for name in admissible]
        if self._names == () and isinstance(action, str):
            return action
        if isinstance(action, str):
            if action not in texts:
                raise ConfigError(unknown("action", action[:80], texts))
            action = texts.index(action)
        if not 0 <= action < len(texts):
            known = f"an index below {len(texts)}, or a text" if texts else "text"
            raise ConfigError(f"action {action} is not admissible: expected {known}")
        # Surplus names stand for the env's last action, as in `TextVectorEnv`.
        return admissible[action] if self._num_actions is None else min(action, self._num_actions - 1)

    def _ask(self, doing: str, function: Callable[[], Any]) -> Any:
        """Call the env; if it raises an error, print the traceback on the server and raise `RunError`."""
        try:
            return function()
        except GroundlingError:
            raise
        except BaseException as error:  # an env that calls sys.exit() must not stop the server
            traceback.print_exception(error)
            where = f"{doing}, seed {self._options.seed}, after {self._steps} steps"
            raise RunError(f"the env raised {type(error).__name__} ({where}): see the server's traceback") from error


def make_app(
    env: str,
    overrides: Sequence[str] = (),
    *,
    max_sessions: int = 8,
    token: str | None = None,
    hosts: Set[str] | None = None,
) -> FastAPI:
    """Create the application that serves a text env.

    Args:
        env, overrides: The env's id and settings (see `groundling.serving.text_worlds.served_worlds`).
        max_sessions: Maximum number of concurrent clients.
        token, hosts: See `groundling.serving.http.AccessControl`.
    """
    make = functools.partial(TextEnvironment, served_worlds(env, overrides))
    app = create_app(make, TextAction, ServedObservation, env, max_sessions)
    app.add_middleware(AccessControl, token=token, hosts=hosts)
    return app
