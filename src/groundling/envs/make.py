"""Making a text env by its id."""

from typing import Any

import gymnasium
from minigrid.minigrid_env import MiniGridEnv

from groundling.envs.babyai_text import LEVELS, BabyAIText
from groundling.errors import ConfigError
from groundling.registry import unknown


def make_text_env(
    id: str, language: str = "english", control: str | None = None, **args: Any
) -> gymnasium.Env[Any, Any]:
    """Make the env ``id``, told in words.

    Any BabyAI or MiniGrid env is told by `BabyAIText`; another env must put its sentences into
    ``info["descriptions"]`` and its mission into ``obs["mission"]`` itself, and speaks English.

    Args:
        id: What Gymnasium knows it by.
        language: ``english`` or ``french``.
        control: How a mission is told otherwise than it is (see `BabyAIText`); an env that is not told by it gets the
            argument itself.
        args: The env's keyword arguments, ``render_mode`` among them.

    Raises:
        ConfigError: no such env, or no such argument, or an env that does not speak the language.
        TranslationError: an unknown language.
    """
    if id not in gymnasium.registry:
        grids = [name for name in gymnasium.registry if name.startswith(("BabyAI-", "MiniGrid-"))]
        raise ConfigError(unknown("env", id, grids))
    if id in LEVELS:
        return _make(id, args | {"language": language, "control": control})
    env = _make(id, args)
    if isinstance(env.unwrapped, MiniGridEnv):
        return BabyAIText(env, language, control=control)
    if language != "english":
        raise ConfigError(f"env {id} speaks English only, got language={language!r}")
    return env if control is None else _make(id, args | {"control": control})


def _make(id: str, args: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(id, disable_env_checker=True, **args)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"env {id} cannot be made with {args}: {error or type(error).__name__}") from error
