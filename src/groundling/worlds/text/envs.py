"""The envs of a text world, as its section of the config describes them."""

from collections.abc import Callable

from groundling.envs.make import ActionNames, TextEnvMaker, name_actions
from groundling.envs.vector import TextVectorEnv
from groundling.errors import UnknownEnv
from groundling.worlds.text.config import TextConfig


def actions_of(config: TextConfig) -> ActionNames:
    """What the actions are called: by the config, by GLAM in the env's language, or by the env.

    Raises:
        ConfigError: there is no such env, or its actions are not those that world.actions names.
    """
    return name_actions(config.env, config.args, config.language, config.actions)


def known_actions_of(config: TextConfig) -> ActionNames:
    """`actions_of`; of an env that is not registered here, those of ``world.actions``, if any."""
    try:
        return actions_of(config)
    except UnknownEnv:
        names = None if config.actions is None else tuple(config.actions)
        return ActionNames(names, None if names is None else len(names))


def make_envs(
    config: TextConfig, num_envs: int, seed_of: Callable[[int, int], int], render_mode: str | None = None
) -> TextVectorEnv:
    """So many envs, not yet reset.

    Args:
        config: The section ``world``.
        num_envs: How many.
        seed_of: An episode's seed, from the env's place and the episode's number in it.
        render_mode: As Gymnasium knows it.

    Raises:
        ConfigError: as `actions_of`.
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
