"""`groundling check-env`."""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.commands.command import Commands, add_command, make_console, positive
from groundling.errors import ConfigError

if TYPE_CHECKING:
    from groundling.envs.checking import Played


def add_parser(commands: Commands) -> None:
    """Add `groundling check-env`."""
    parser = add_command(
        commands, "check-env", run, "play in a text env of yours, and show what a model would read"
    )
    parser.add_argument(
        "env", help="MODULE:CLASS, MODULE:FUNCTION that makes it, or what Gymnasium knows it by"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="world.args={…}, world.actions=[…], world.history=N"
    )
    parser.add_argument(
        "--episodes", type=positive, default=3, help="played at random (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from rich.table import Table

    from groundling.configs.compose import changed, compose
    from groundling.envs.checking import check_env
    from groundling.prompts import PromptReader

    id = _registered(arguments.env)
    for text in arguments.overrides:
        if not text.lstrip("~").startswith(("world.args", "world.actions", "world.history")):
            raise ConfigError(f"check-env takes world.args, world.actions and world.history, got {text!r}")
    config = changed(compose("glam/mixed", [f"world.env={id}", "~world.args"]), arguments.overrides)
    world: Any = config.world
    played = check_env(id, world.args, world.actions, history=world.history, num_episodes=arguments.episodes)
    console = make_console()
    for observation in played.shown:
        console.rule(f"what a model reads after {len(observation.past_actions)} actions", align="left")
        console.print(PromptReader("glam", "english")(observation), markup=False, highlight=False)
    console.rule("random play", align="left")
    table = Table(show_header=False, box=None)
    for name, value in _figures(played):
        table.add_row(name, value)
    console.print(table)
    console.print("equal seeds gave equal episodes: a run here can be resumed exactly", highlight=False)
    return 0


def _figures(played: "Played") -> list[tuple[str, str]]:
    lengths = [len(e.actions) for e in played.episodes]
    returns = [e.episode_return for e in played.episodes]
    count = len(played.episodes)
    return [
        ("episodes", f"{count}, of {min(lengths)} to {max(lengths)} steps"),
        ("return", f"{min(returns):.4g} to {max(returns):.4g}"),
        ("successes", f"{sum(e.success for e in played.episodes)} of {count}"),
        ("admissible actions", f"{played.fewest_actions} to {played.most_actions} at a step"),
        ("distinct actions", f"{played.distinct_actions} seen"),
        ("speed", f"{played.steps / played.seconds:,.0f} steps/s, resets included"),
    ]


def _registered(name: str) -> str:
    """The id of an env, registered for the occasion if it is a class or function of a module."""
    import gymnasium

    module_name, colon, attribute = name.partition(":")
    if not colon:
        return name
    sys.path.insert(0, str(Path.cwd()))  # as for --import
    try:
        module: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"there is no module {error.name}: run this where it lies") from error
    if attribute in gymnasium.registry:
        return attribute
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(f"{module_name} neither has {attribute} nor registers an env of that id")
    id = f"check-env/{attribute.replace('_', '-')}-v0"
    gymnasium.register(id, entry_point=factory)
    return id
