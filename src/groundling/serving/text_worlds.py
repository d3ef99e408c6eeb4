"""A text world, both unchanged and with each suite that changes what an agent reads."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from groundling.config.compose import changed, compose
from groundling.envs.make import TextEnvMaker, name_actions
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError
from groundling.prompts.prompt import replaced
from groundling.training.build import world_of

SETTINGS = ("args", "actions", "goal", "goal_key", "language", "step_limit")
"""The keys of ``world`` that apply to a served world."""


@dataclass(frozen=True)
class ServedWorld:
    """A world with a suite applied: its config, and the words to replace in everything that the agent reads."""

    config: Any  # the ``world`` section
    replacements: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the actions (see `groundling.envs.make.ActionNames`)."""
        config = self.config
        return name_actions(config.env, config.args, config.language, config.actions).names

    def make_env(self) -> gymnasium.Env[Any, Any]:
        maker = TextEnvMaker.of(self.config.env, **self.config.args, language=self.config.language)
        return replace(maker, goal=self.config.reads_goal)()

    def reads(self, text: str) -> str:
        return replaced(text, self.replacements)


def served_worlds(env: str, overrides: Sequence[str] = ()) -> dict[str | None, ServedWorld]:
    """Return an env's world for each suite that changes what an agent reads; None maps to the unchanged world.

    Raises:
        ConfigError: The env is not a text env, or an override is invalid or is not one of `SETTINGS`.
    """
    for text in overrides:
        section, _, key = text.lstrip("+~").partition("=")[0].partition(".")
        if section != "world" or key.partition(".")[0] not in SETTINGS:
            raise ConfigError(f"{text} does not apply to a served world: expected world.{', world.'.join(SETTINGS)}")
    # The client builds the prompt. With this setting, suites that change the words around GLAM's goal do not apply.
    prompt = "policy.args.prompt=conversation"
    config = compose("text", [f"world.env={env}", "~world.args", prompt, *overrides], purpose="playing")
    unchanged = ServedWorld(config.world, {})
    with closing(TextVectorEnv(unchanged.make_env, 1, unchanged.names, lambda *_: 0)) as envs:
        envs.reset()  # raises an error unless it is a text env
    worlds: dict[str | None, ServedWorld] = {None: unchanged}
    world: Any = world_of(config)  # a text world, which has `Suites`
    for name in world.suites:
        try:
            under = changed(config, world.suite_overrides(name, ()), "playing")
            under_suite: Any = world_of(under, suite=name)
            under_suite.check_suite()
            one = ServedWorld(under.world, under.policy.args.get("replacements") or {})
            one.make_env().close()
        except ConfigError:  # the suite does not apply to this env
            continue
        if one != unchanged:
            worlds[name] = one
    return worlds
