"""Text worlds as OpenEnv environments (https://github.com/meta-pytorch/OpenEnv), for trainers that use its clients."""

import functools
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, cast

import gymnasium
from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

import groundling
from groundling.config.compose import changed, compose
from groundling.envs.make import inspect_env
from groundling.envs.text_env import TextStep, read_reset, read_step, read_success, read_text_step
from groundling.envs.text_episode import FirstInteraction, read_first_interaction, read_metrics
from groundling.errors import ConfigError, GroundlingError, RunError, unknown
from groundling.serving.http import Guard
from groundling.training.build import world_of
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import actions_of, make_env, make_envs
from groundling.worlds.text.suites import SUITES
from groundling.worlds.text.world import TextWorld

SETTINGS = ("args", "actions", "goal", "goal_key", "language", "step_limit")
"""The keys of ``world`` that apply to a served world."""
_MOST_CHARACTERS = 100_000  # of an action
_NUM_SEEDS, _NUM_TRAINING_SEEDS = 2**31, 2**30  # see `groundling.envs.text_episode`


class TextAction(Action):
    """The agent's next action."""

    action: Annotated[StrictStr, Field(max_length=_MOST_CHARACTERS)] | StrictInt = Field(
        description="One of the observation's actions, as its text or its index from 0; any text if it lists none"
    )


class TextObservation(Observation):
    """An observation; its metadata has the episode's seed and suite and, at its end, the env's figures."""

    goal: str = Field(description="The goal of the episode; empty if it has none")
    text: str = Field(description="The current observation, a sentence per line")
    actions: list[str] = Field(description="The admissible actions; empty if any text is an action")
    success: bool | None = Field(None, description="True if the episode succeeded; null until it ends")


class EpisodeState(State):
    """The current episode."""

    seed: int | None = None
    suite: str | None = None


class ResetOptions(BaseModel):
    """The arguments of a client's ``reset``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: int | None = Field(None, ge=0, lt=_NUM_SEEDS)
    episode_id: str | None = Field(None, max_length=255)
    suite: str | None = None


@dataclass(frozen=True)
class ServedWorld:
    """A world under a suite: its config, and the words to replace in everything that the agent reads."""

    config: TextConfig
    replacements: Mapping[str, str]

    def reads(self, text: str) -> str:
        for word, other in self.replacements.items():
            text = text.replace(word, other)
        return text


class TextEnvironment(Environment[TextAction, TextObservation, EpisodeState]):
    """A session, which plays one episode after another in an env of its own.

    Args:
        worlds: The world under each suite that a client may choose, and unchanged under None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, worlds: Mapping[str | None, ServedWorld]) -> None:
        super().__init__()
        self._worlds = worlds
        self._env: gymnasium.Env[Any, Any] | None = None
        self._state = EpisodeState()
        self._is_running = False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> TextObservation:
        """Start an episode. Equal seeds give equal episodes; without one, it is drawn from the training seeds.

        Raises:
            ConfigError: An option is unknown or has an invalid value.
            RunError: The env raised an error.
        """
        asked = _options_of({"seed": seed, "episode_id": episode_id, **options})
        if asked.suite not in self._worlds:
            raise ConfigError(unknown("suite", str(asked.suite), [name for name in self._worlds if name is not None]))
        if self._env is None or asked.suite != self._state.suite:
            self.close()
            self._world = self._worlds[asked.suite]
            config = self._world.config
            self._names = actions_of(config).names
            self._num_actions = inspect_env(config.env, config.args, config.language).num_actions
            self._env = make_env(config)
        asked.seed = secrets.randbelow(_NUM_TRAINING_SEEDS) if asked.seed is None else asked.seed
        self._state = EpisodeState(**asked.model_dump())
        raw, info = read_reset(self._ask("reset", functools.partial(self._env.reset, seed=asked.seed)))
        self._shown = read_text_step(raw, info, has_lists=self._names is None)
        self._is_running = True
        return self._observed({"tools": [*self._shown.tools]} if self._shown.tools else {})

    def step(self, action: TextAction, timeout_s: float | None = None, **options: Any) -> TextObservation:
        """Take an action. An inadmissible one raises `ConfigError` and leaves the episode as it is.

        Raises:
            ConfigError: No episode is running, or the action is not admissible.
            RunError: The env raised an error, which ends the episode.
        """
        if self._env is None or not self._is_running:
            raise ConfigError("no episode is running: call reset first")
        chosen = self._choose(action.action)
        self._is_running = False  # unless the env returns
        returned = self._ask(f"step {action.action!r:.80}", functools.partial(self._env.step, chosen))
        raw, reward, terminated, truncated, info = read_step(returned)
        self._shown = read_text_step(raw, info, self._shown.goal, has_lists=self._names is None)
        self._state.step_count += 1
        limit = self._world.config.step_limit
        truncated = truncated or (not terminated and limit is not None and self._state.step_count >= limit)
        self._is_running = not (terminated or truncated)
        if self._is_running:
            return self._observed({}, reward=reward)
        first: FirstInteraction | None = read_first_interaction(info)
        figures = {**({} if first is None else first.figures), **read_metrics(info)}
        success = read_success(info, terminated and reward > 0)
        ended = {"truncated": truncated, **({"task": str(info["task"])} if "task" in info else {}), "figures": figures}
        return self._observed(ended, reward=reward, done=True, success=success)

    @property
    def state(self) -> EpisodeState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        suites = ", ".join(name for name in self._worlds if name is not None)
        return EnvironmentMetadata(
            name=self._worlds[None].config.env,
            description=f"A text world of Groundling. Options of reset: seed; suite, one of: {suites or 'none'}",
            version=groundling.__version__,
        )

    def close(self) -> None:
        if self._env is not None:
            self._ask("close", self._env.close)
        self._env, self._is_running = None, False

    def _observed(self, more: Mapping[str, Any], **result: Any) -> TextObservation:
        shown, reads, state = self._shown, self._world.reads, self._state
        return TextObservation(
            goal=reads(shown.goal),
            text=reads("\n".join(shown.descriptions)),
            actions=[reads(name) for name in self._admissible()],
            metadata={"seed": state.seed, "suite": state.suite, **more},
            **result,
        )

    def _admissible(self) -> Sequence[str]:
        return (self._shown.actions or ()) if self._names is None else self._names

    def _choose(self, action: str | int) -> str | int:
        """Return the argument of the env's ``step``; raise `ConfigError` if the action is not admissible."""
        admissible = self._admissible()
        if self._names == ():
            if isinstance(action, int):
                raise ConfigError(f"action {action} is a number, but this env has no list of actions: send text")
            return action
        texts = [self._world.reads(name) for name in admissible]
        if isinstance(action, str):
            if action not in texts:
                raise ConfigError(unknown("action", action[:80], texts))
            action = texts.index(action)
        if not 0 <= action < len(texts):
            raise ConfigError(f"action {action} is not one of the {len(texts)}, which are counted from 0")
        # Surplus names stand for the env's last action, as in `TextVectorEnv`.
        return admissible[action] if self._num_actions is None else min(action, self._num_actions - 1)

    def _ask(self, doing: str, function: Callable[[], Any]) -> Any:
        """Call the env; raise `RunError` if it raises, and print the traceback here."""
        try:
            return function()
        except GroundlingError:
            raise
        except BaseException as error:  # an env that calls sys.exit() must not end the server
            traceback.print_exception(error)
            where = f"seed {self._state.seed}, step {self._state.step_count}"
            raise RunError(
                f"the env raised {type(error).__name__} during {doing} ({where}); its traceback is on the server"
            ) from error


def _options_of(given: Mapping[str, Any]) -> ResetOptions:
    try:
        return ResetOptions.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        known = ", ".join(ResetOptions.model_fields)
        raise ConfigError(
            f"reset: {'.'.join(map(str, wrong['loc']))}={wrong['input']!r:.80}: {wrong['msg']}; options: {known}"
        ) from None


def served_worlds(env: str, overrides: Sequence[str] = ()) -> dict[str | None, ServedWorld]:
    """Return an env's world under each suite that changes what an agent reads, and unchanged under None.

    Raises:
        ConfigError: The env is not a text env, or an override is invalid or is not one of `SETTINGS`.
    """
    for text in overrides:
        section, _, key = text.lstrip("+~").partition("=")[0].partition(".")
        if section != "world" or key.partition(".")[0] not in SETTINGS:
            raise ConfigError(f"{text} does not apply to a served world: expected world.{', world.'.join(SETTINGS)}")
    config = compose("text", [f"world.env={env}", "~world.args", *overrides], purpose="playing")
    world = cast(TextWorld, world_of(config))
    worlds: dict[str | None, ServedWorld] = {None: ServedWorld(world.config, {})}
    with closing(make_envs(world.config, 1, lambda *_: 0)) as envs:
        envs.reset()  # raises an error unless it is a text env
    for name, suite in SUITES.items():
        if suite.form or suite.prompt is not None:
            continue  # it changes the prompt, which is the client's
        try:
            under = changed(config, world.suite_overrides(name, ()), "playing")
            world_of(under, suite=name).check_suite()
        except ConfigError:  # it is for other envs
            continue
        one = ServedWorld(cast(TextConfig, under.world), under.policy.args.get("replacements") or {})
        if one != worlds[None]:
            worlds[name] = one
    return worlds


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
        env: Id of a registered env.
        overrides: Its settings, such as ``world.args={num_dists: 2}`` (see `SETTINGS`).
        max_sessions: Maximum number of clients at a time.
        token, hosts: See `groundling.serving.http.Guard`.

    Raises:
        ConfigError: See `served_worlds`.
    """
    make = functools.partial(TextEnvironment, served_worlds(env, overrides))
    app = create_app(make, TextAction, TextObservation, env, max_sessions, state_cls=EpisodeState)
    app.add_middleware(Guard, token=token, hosts=hosts)
    return app
