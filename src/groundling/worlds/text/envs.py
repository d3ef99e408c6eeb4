"""The envs of a text world, as its section of the config describes them."""

from collections.abc import Callable

from groundling.configs.schema import EnvConfig
from groundling.envs.make import ActionNames, TextEnvMaker, name_actions
from groundling.envs.vector import TextVectorEnv


def actions_of(env: EnvConfig) -> ActionNames:
    """What the actions are called: by the config, by GLAM in the env's language, or by the env.

    Raises:
        ConfigError: there is no such env, or its actions are not those that env.actions names.
    """
    return name_actions(env.id, env.args, env.language, env.actions)


def make_envs(
    env: EnvConfig, num_envs: int, seed_of: Callable[[int, int], int], render_mode: str | None = None
) -> TextVectorEnv:
    """So many envs, not yet reset.

    Args:
        env: The config's section.
        num_envs: How many.
        seed_of: An episode's seed, from the env's place and the episode's number in it.
        render_mode: As Gymnasium knows it.

    Raises:
        ConfigError: as `actions_of`.
    """
    args = {**env.args, "language": env.language}
    if render_mode is not None:
        args["render_mode"] = render_mode
    return TextVectorEnv(
        TextEnvMaker.of(env.id, **args),
        num_envs,
        actions_of(env).names,
        seed_of=seed_of,
        history=env.history,
        num_workers=env.num_workers,
        timeout=env.timeout,
    )
