"""Create text envs by id, and name their actions."""

import functools
import inspect
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from minigrid.core.actions import Actions
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.minigrid_env import MiniGridEnv

from groundling.envs.babyai_text import ACTIONS, LEVELS, BabyAIText
from groundling.envs.controls import ControlledGoal
from groundling.envs.objects import origin_of
from groundling.envs.openenv.env import PREFIX, OpenEnv, check_url
from groundling.envs.text_env import Reader, TextEnv, check_characters, check_language, read_text_step
from groundling.errors import ConfigError, UnknownEnv, did_you_mean, foreign, warn_caller
from groundling.registry import IMPORT, imported_modules

_IMPORTING = ("GymV21Environment-v0", "GymV26Environment-v0")  # they import the module in an id such as ``module:ID``


def is_server(id: str) -> bool:
    """Return True for ``openenv:URL``, the env of an OpenEnv server."""
    return id.startswith(PREFIX)


def is_available(id: str) -> bool:
    """Return True if the env is registered in this process or runs on a server."""
    return id in gymnasium.registry or is_server(id)


def check_registered(id: str) -> None:
    """Raise `UnknownEnv` if no env with this id is registered in this process, `ConfigError` for an invalid URL."""
    if is_server(id):
        check_url(id.removeprefix(PREFIX))
    elif id not in gymnasium.registry:
        hint = did_you_mean(id, gymnasium.registry, 0.7)
        raise UnknownEnv(f"unknown env {id!r}: {hint}{IMPORT}`groundling list envs` lists the available ones")


def make_text_env(id: str, language: str = "english", **args: Any) -> gymnasium.Env[Any, Any]:
    """Create a text env. BabyAI and MiniGrid envs are wrapped in `BabyAIText`; ``args`` may contain its argument
    ``describe_walls``. Other envs must provide text in English (see `read_text_step`).

    ``control`` in ``args`` changes the goal that the agent reads (`groundling.envs.controls`). BabyAI's levels and envs
    with an argument of this name change the goal themselves; other envs are wrapped in `ControlledGoal`, which receives
    ``other_goal`` from ``args`` as its argument ``function``.

    Raises:
        ConfigError: The env or an argument does not exist, or the env does not support the language.
        TranslationError: The language is unknown.
    """
    check_registered(id)
    if id in _IMPORTING:
        raise ConfigError(
            f"env {id} imports code named in its arguments, which is not allowed: register the env that you "
            "want in your own module, and pass --import MODULE"
        )
    control, function = args.pop("control", None), args.pop("other_goal", None)
    own = {} if control in (None, "corrupted") or function is not None else {"control": control}
    if id in LEVELS:
        env = _make(id, args | {"language": language} | own)
        return env if own or control is None else ControlledGoal(env, control, function)
    words = {"describe_walls": args.pop("describe_walls")} if "describe_walls" in args else {}
    env = _make(id, args)
    if isinstance(env.unwrapped, MiniGridEnv):
        is_text = any(isinstance(layer, BabyAIText) for layer in _layers(env))  # an env object may already be wrapped
        own = {} if is_text or not isinstance(env.unwrapped, RoomGridLevel) else own
        env = env if is_text else BabyAIText(env, language, **words, **own)
    elif language != "english":
        raise ConfigError(f"env {id} supports only English, got language={language!r}")
    else:
        own = own if own and _takes_control(id, env) else {}
        words = {name: value for name, value in words.items() if value is not None}
        env = _make(id, args | words | own) if words or own else env
    return env if own or control is None else ControlledGoal(env, control, function)


def _takes_control(id: str, env: gymnasium.Env[Any, Any]) -> bool:
    """Return True if the env's class, or the function that creates it, has a ``control`` argument."""
    point = getattr(gymnasium.registry.get(id), "entry_point", None)
    makers = [type(env.unwrapped), load_env_creator(point) if isinstance(point, str) else point]
    with suppress(TypeError, ValueError):  # an object without a signature
        return any("control" in inspect.signature(made).parameters for made in makers if made is not None)
    return False


@dataclass(frozen=True, slots=True)
class ActionNames:
    names: tuple[str, ...] | None
    """The same at every step; None if the env lists the admissible actions; empty if actions are free text."""
    most: int | None  # maximum number of actions at a step; None if unlimited


def name_actions(
    id: str, args: Mapping[str, Any], language: str = "english", given: Sequence[str] | None = None
) -> ActionNames:
    """Return the names of an env's actions: ``given`` (the i-th name is for action i) or, for BabyAI and MiniGrid, up
    to six of GLAM's names. Other envs list their own actions, or accept any text. Raise the same errors as
    `make_text_env`, and `ConfigError` if the number of names does not match the number of actions.
    """
    check_characters("a name in world.actions", given or ())
    env = inspect_env(id, args, language)
    if given is None and env.is_grid:
        given = ACTIONS[check_language(language)][: env.num_actions]
    if given is None:
        if env.takes_any_text or env.own_names is None:
            return ActionNames(() if env.takes_any_text else None, env.num_actions)
        if env.invalid_names is not None:
            raise ConfigError(f"env {id} has invalid action names: {env.invalid_names}")
        if env.names_from is None:
            _warn_of_numbers(id, len(env.own_names))
        given = env.own_names
    # BabyAI's last action does nothing. GLAM has several names for it, or none.
    has_surplus = env.is_grid and env.num_actions == len(Actions)
    if not (env.takes_any_text or has_surplus or env.num_actions == len(given)):
        actions = "free-text actions" if env.num_actions is None else f"{env.num_actions} actions"
        raise ConfigError(
            f"world.actions has {len(given)} names ({', '.join(given)}), but env {id} has {actions}: set one name for "
            "each, or remove world.actions to let the env list them"
        )
    return ActionNames(tuple(given), len(given))


@functools.cache
def _warn_of_numbers(id: str, count: int) -> None:
    warn_caller(
        f"env {id} does not name its {count} actions, so the agent reads action 0 to action {count - 1}: name them with "
        "world.actions=[…], with an attribute action_names of the env, or in info['actions']"
    )


@dataclass(frozen=True)
class EnvTraits:
    """Properties of an env that can only be read from an instance."""

    is_grid: bool  # it is a MiniGrid env, or wraps one
    num_actions: int | None  # None if actions are strings
    has_symbols: bool  # observations include Minigrid's codes, 7 × 7 × 3
    takes_any_text: bool  # it accepts any text as an action, and lists no actions
    own_names: tuple[str, ...] | None = None  # names of its actions; None if it lists them at each step, or is a grid
    names_from: str | None = None  # the attribute that contains these names; None if they are numbers
    invalid_names: str | None = None  # why its attribute action_names is invalid; None if it is valid or missing


def inspect_env(id: str, args: Mapping[str, Any], language: str = "english") -> EnvTraits:
    """Create an env once to inspect it; the arguments and errors are those of `make_text_env`."""
    # The id of a Python object can be registered again for another object.
    point = getattr(gymnasium.registry.get(id), "entry_point", None)
    try:
        key = json.dumps(dict(args), sort_keys=True)
    except TypeError:  # arguments that only Python code can pass
        return _inspect.__wrapped__(id, args, language, point)
    return _inspect(id, key, language, point)


@functools.cache
def _inspect(id: str, args: str | Mapping[str, Any], language: str, entry_point: Any) -> EnvTraits:
    env = make_text_env(id, language, **(json.loads(args) if isinstance(args, str) else args))
    try:
        space, shown = env.action_space, env.observation_space
        count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else None
        if isinstance(space, gymnasium.spaces.Discrete) and space.start != 0:
            shift = f"lambda action: action + {space.start}, gymnasium.spaces.Discrete({count})"
            raise ConfigError(
                f"env {id} has the action space {space}, but actions must start at 0: wrap the env, as in "
                f"gymnasium.wrappers.TransformAction(env, {shift})"
            )
        image = shown.spaces.get("image") if isinstance(shown, gymnasium.spaces.Dict) else None
        symbols = getattr(image, "shape", None) == (7, 7, 3)
        if isinstance(env.unwrapped, MiniGridEnv):
            return EnvTraits(True, count, symbols, False)
        if isinstance(env.unwrapped, OpenEnv):  # do not connect: a report on someone else's run may call this
            return EnvTraits(False, None, False, env.unwrapped.takes_any_text)
        lists_actions = True
        with suppress(Exception, SystemExit):  # reported when an episode is played
            lists_actions = read_text_step(*env.reset(seed=0)).actions is not None
        takes_text = isinstance(space, gymnasium.spaces.Text) and not lists_actions
        named = () if lists_actions or count is None else _own_names(env, count)
        return EnvTraits(False, count, symbols, takes_text, *named)
    finally:
        with foreign(f"env {id}, while being closed,"):
            env.close()


_NAMING = ("action_names", "ACTION_NAMES", "actions", "ACTIONS", "Actions", "get_action_meanings")
"""Attributes of envs that may contain action names: lists, mappings, enumerations, or a method that returns a list."""


def _own_names(env: gymnasium.Env[Any, Any], count: int) -> tuple[tuple[str, ...], str | None, str | None]:
    """Return the action names, the attribute of the env or of a wrapped env that contains them, and None; otherwise
    numbers, None and, if ``action_names`` is invalid, the reason. Other attributes may have an unrelated meaning.
    """
    numbers = tuple(f"action {number}" for number in range(count))
    for layer in _layers(env):
        for attribute in _NAMING:
            value: Any = None
            try:
                value = getattr(layer, attribute, None)
                names = _as_names(value() if attribute.startswith("get_") else value, count)
                if len(names) == len(set(names)) == count:
                    return names, attribute, None
            except Exception as error:  # properties and methods may raise anything
                value = error
            if attribute.lower() == "action_names" and value is not None:
                expected = f"expected a list of {count} different, non-empty strings"
                return numbers, None, f"its attribute {attribute} is {value!r:.80}, {expected}"
    return numbers, None, None


def _layers(env: Any) -> Iterator[Any]:
    yield env
    while isinstance(env, gymnasium.Wrapper):
        yield (env := env.env)


def _as_names(value: Any, count: int) -> tuple[str, ...]:
    """Return the names in a list, a mapping from or to numbers, or an enumeration; empty for anything else."""
    if isinstance(value, type) and issubclass(value, Enum):
        value = {one.value: one.name.lower().replace("_", " ") for one in value}
    if isinstance(value, Mapping):
        by_number = value if all(isinstance(key, int) for key in value) else {n: name for name, n in value.items()}
        value = [by_number[number] for number in range(count)] if len(by_number) == count else ()
    names = tuple(value) if isinstance(value, list | tuple) else ()
    return names if all(isinstance(name, str) and name for name in names) else ()


def step_limit(id: str, args: Mapping[str, Any], language: str = "english") -> int | None:
    """Return the number of steps after which an env truncates an episode, or None if it has no known limit."""
    with suppress(Exception, SystemExit), closing(make_text_env(id, language, **args)) as env:
        if not isinstance(env.unwrapped, OpenEnv):
            env.reset(seed=0)  # BabyAI's levels set their limit in reset
        own = [getattr(env.unwrapped, name, None) for name in ("max_steps", "max_episode_steps")]
        limits = [getattr(env.spec, "max_episode_steps", None), *own]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)
    return None


@dataclass(frozen=True)
class TextEnvMaker:
    """Creates a text env, even in a process in which its id has not been registered yet."""

    id: str
    args: dict[str, Any]  # arguments of `make_text_env`
    module: str | None = None  # module that registers it
    spec: EnvSpec | None = None  # registers the env if no import does; None if it cannot be pickled
    imported: tuple[str, ...] = ()  # modules of ``--import``, which register it if ``module`` does not
    goal: str | Reader | None = None  # see `TextEnv`

    @classmethod
    def of(cls, id: str, **args: Any) -> "TextEnvMaker":
        spec = gymnasium.registry.get(id)
        point = getattr(spec, "entry_point", None)
        module = point.partition(":")[0] if isinstance(point, str) else getattr(point, "__module__", None)
        try:
            pickle.dumps(spec)
        except Exception:  # e.g. for a lambda; pickling may raise any error
            spec = None
        return cls(id, args, module, spec, tuple(name for name in imported_modules if ":" not in name))

    def __call__(self) -> gymnasium.Env[Any, Any]:
        for module in (self.module, *(self.imported if self.spec is None else ())):
            if module is not None and self.id not in gymnasium.registry:
                import_module(module)
        if self.spec is not None:
            gymnasium.registry.setdefault(self.id, self.spec)
        if self.goal is None:
            return make_text_env(self.id, **self.args)
        args = dict(self.args)
        control, function = args.pop("control", None), args.pop("other_goal", None)
        env = TextEnv(make_text_env(self.id, **args), goal=self.goal)
        return env if control is None else ControlledGoal(env, control, function)

    def __getstate__(self) -> dict[str, Any]:  # to create envs in a worker process
        if self.spec is None and (origin := origin_of(self.id)) is not None:
            raise ConfigError(
                f"worker processes cannot import {origin}: pass a class or function that is defined at the top level "
                "of a module, or set world.num_workers=0"
            )
        return vars(self)


def _make(id: str, args: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    with foreign(f"env {id}, while being created with {args},"):
        try:
            if is_server(id):
                env: gymnasium.Env[Any, Any] = OpenEnv(id.removeprefix(PREFIX), **args)
            else:
                env = gymnasium.make(id, disable_env_checker=True, **args)
        except (TypeError, ValueError, AssertionError, OSError) as error:
            reason = str(error) or type(error).__name__
            advice = "; ~world.args removes the experiment's arguments" if args else ""
            raise ConfigError(f"env {id} cannot be created with {args}: {reason}{advice}") from error
    for name in ("observation_space", "action_space"):
        if not hasattr(env, name):
            raise ConfigError(f"env {id} has no {name}: define one in its class, such as gymnasium.spaces.Text(1000)")
    return env
