"""A text world, unchanged and under the suites that change what an agent reads."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from groundling.config.compose import changed, compose
from groundling.errors import ConfigError
from groundling.training.build import world_of
from groundling.worlds.text.config import TextConfig
from groundling.worlds.text.episodes import make_envs
from groundling.worlds.text.suites import SUITES
from groundling.worlds.text.world import TextWorld

SETTINGS = ("args", "actions", "goal", "goal_key", "language", "step_limit")
"""The keys of ``world`` that apply to a served world."""


@dataclass(frozen=True)
class ServedWorld:
    """A world under a suite: its config, and the words to replace in everything that the agent reads."""

    config: TextConfig
    replacements: Mapping[str, str]

    def reads(self, text: str) -> str:
        for word, other in self.replacements.items():
            text = text.replace(word, other)
        return text


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
