"""Making a text world's envs by its section of the config."""

from collections.abc import Callable

from groundling.envs.make import ActionNames, TextEnvMaker, name_actions
from groundling.envs.vector import TextVectorEnv
from groundling.errors import UnknownEnv
from groundling.worlds.text.config import TextConfig


def actions_of(config: TextConfig) -> ActionNames:
    """Return the names of the actions: the config's, GLAM's in the env's language, or the env's.

    Raises:
        ConfigError: The env is unknown, or its actions are not those that world.actions names.
    """
    return name_actions(config.env, config.args, config.language, config.actions)


def known_actions_of(config: TextConfig) -> ActionNames:
    """Return `actions_of`; for an env that is not registered here, ``world.actions``."""
    try:
        return actions_of(config)
    except UnknownEnv:
        names = None if config.actions is None else tuple(config.actions)
        return ActionNames(names, None if names is None else len(names))


def make_envs(
    config: TextConfig, num_envs: int, seed_of: Callable[[int, int], int], render_mode: str | None = None
) -> TextVectorEnv:
    """Make envs, not yet reset.

    Args:
        config: The section ``world``.
        num_envs: Number of envs.
        seed_of: Returns an episode's seed from the env's index and the episode's number in it.
        render_mode: Gymnasium's render mode.

    Raises:
        ConfigError: As `actions_of`.
    """
    args = {**config.args, "language": config.language}
    if render_mode is not None:
        args["render_mode"] = render_mode
    return TextVectorEnv(
        TextEnvMaker.of(config.env, **args),
        num_envs,
        actions_of(config).names,
        seed_of=seed_of,
        history=config.history,
        num_workers=config.num_workers,
        timeout=config.timeout,
    )
