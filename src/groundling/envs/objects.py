"""Register Python objects as envs with Gymnasium, so that configs can refer to them by id."""

import copy
import functools
import inspect
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from groundling.errors import ConfigError, foreign

_EXPECTED = "an env id, an env class, a function that creates an env, or an env"
_origins: dict[str, tuple[str, Any]] = {}  # names of the objects registered here, and code of anonymous functions


def register_env(made: Any) -> str:
    """Register an env class, a function that creates an env, or an env to copy; return its id, ``NAME-v0``.

    An object replaces an earlier one with the same name and module, for example when a notebook cell is run again.

    Raises:
        ConfigError: The object does not create envs, cannot be copied, or its id is taken by another env.
    """
    if isinstance(made, gymnasium.Env) and (id := _known_id(made)) is not None:
        return id
    factory = _factory_of(made)
    named = _namesake(made)
    id, origin = f"{named.__name__.strip('_').replace('_', '-')}-v0", qualified_name(named)
    taken = gymnasium.registry.get(id)
    if taken is not None and taken.entry_point in (factory, origin):
        return id
    if (code := None if named is made else getattr(made, "__code__", None)) is not None:  # of an anonymous function
        bound = repr((made.__defaults__, [cell.cell_contents for cell in made.__closure__ or ()]))
        code = code.co_code, code.co_consts, code.co_names, bound
    was, other = _origins.get(id, (None, None))
    if taken is not None and (was != origin or (code and other and code != other)):
        raise ConfigError(
            f"the id {id} of {origin} is already taken by another env ({origin_of(id) or taken.entry_point}): pass "
            f"world={id!r}, or a function or class with another name"
        )
    gymnasium.registry[id] = EnvSpec(id, factory)
    _origins[id] = origin, code
    return id


def origin_of(id: str) -> str | None:
    """Return MODULE:NAME of the object that `register_env` registered under an id, if any."""
    return _origins[id][0] if id in _origins else None


def qualified_name(made: Any) -> str:
    """Return MODULE:NAME of a class or function, or of another object's class."""
    named = made if hasattr(made, "__qualname__") else type(made)
    return f"{named.__module__}:{named.__qualname__}"


def _known_id(env: gymnasium.Env[Any, Any]) -> str | None:
    """Return the id from which `gymnasium.make` would create the same env without further arguments, if any."""
    spec = env.spec
    known = None if spec is None else gymnasium.registry.get(spec.id)
    if spec is None or known is None or spec.additional_wrappers or spec.kwargs != known.kwargs:
        return None
    return spec.id


@dataclass(eq=False)
class _Factory:
    """Creates envs by calling an object or by copying an env."""

    create: Any

    def __call__(self, **args: Any) -> Any:
        if not isinstance(self.create, gymnasium.Env):
            return self.create(**args)
        if args:
            raise TypeError("copies of an env object accept no arguments: pass its class instead")
        return _copied(self.create)

    def __deepcopy__(self, memo: Any) -> "_Factory":  # Gymnasium copies the spec of a wrapped env
        return self


def _factory_of(made: Any) -> Any:
    """Check an object and return a callable that creates envs from it."""
    if inspect.isclass(made) and not issubclass(made, gymnasium.Env):
        is_of_tools = hasattr(made, "reset") and not hasattr(made, "step")
        advice = (
            f"or, if its methods are tools, pass lambda: ToolEnv({made.__name__})"
            if is_of_tools
            else f"or pass {_EXPECTED}"
        )
        raise ConfigError(f"the class {made.__name__} is not an env: derive it from gymnasium.Env, {advice}")
    if inspect.isclass(made) and issubclass(made, gymnasium.Wrapper):
        name = made.__name__
        raise ConfigError(
            f"{name} is a wrapper: pass a function that creates the wrapped env, lambda: {name}(MyEnv())"
        )
    if isinstance(made, gymnasium.Env):
        _copied(made).close()
    elif not callable(made):
        raise ConfigError(f"world must be {_EXPECTED}, got {made!r:.80} ({type(made).__name__})")
    return made if inspect.isclass(made) or inspect.isfunction(made) else _Factory(made)


def _namesake(made: Any) -> Any:
    """Return a class or named function, or the class of the envs that an anonymous object creates."""
    if isinstance(made, functools.partial):
        return _namesake(made.func)
    if isinstance(made, gymnasium.Env):
        return type(made.unwrapped)
    if str(getattr(made, "__name__", "")).isidentifier():
        return made
    with foreign("the function that creates an env"):
        env = made()
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"the function that creates an env returned {env!r:.80}: return a gymnasium.Env")
    env.close()
    return type(env.unwrapped)


def _copied(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Copy an env, or create it again from its spec if Gymnasium made it."""
    try:
        return copy.deepcopy(env)
    except Exception as error:  # it may hold a handle to an engine, for example
        try:
            assert env.spec is not None
            return gymnasium.make(env.spec, disable_env_checker=True)
        except Exception:
            name = type(env.unwrapped).__name__
            raise ConfigError(
                f"the env {name} cannot be copied ({type(error).__name__}: {error!s:.80}), and a run needs several: "
                f"pass its class, world={name}, or a function that creates it, world=lambda: {name}(…)"
            ) from error
