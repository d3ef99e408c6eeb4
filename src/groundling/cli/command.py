"""Options and messages that the commands share."""

import argparse
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from groundling.errors import ConfigError, did_you_mean, foreign
from groundling.io.terminal import plain

INTERRUPTED = 130  # Exit status of a stopped run, as after Ctrl-C in a shell

Commands = argparse._SubParsersAction  # argparse has no public name for it


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], help: str, *, examples: str
) -> argparse.ArgumentParser:
    """Add a command; ``examples`` are shown below the options: command lines, each followed by its purpose."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help,
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module that registers your own components or envs; FILE.py:NAME adds a function as a reward, "
        "and MODULE:NAME adds an env: an env class, a function without arguments that creates an env, or an env",
    )
    return parser


def add_overrides(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=help)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option for a folder of the user's experiments."""
    text = "a folder with your own experiment/*.yaml"
    parser.add_argument("--config-dir", type=_folder, metavar="FOLDER", help=text)


def refuse_unused(arguments: argparse.Namespace, reason: str, *options: str) -> None:
    """Raise `ConfigError` if any of the ``options`` is set, since it has no effect for the given ``reason``."""
    for option in options:
        if getattr(arguments, option) != arguments.parser.get_default(option):
            raise ConfigError(f"--{option.replace('_', '-')} has no effect {reason}: remove it")


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder: pass the one with your experiment/*.yaml")
    return Path(text)


def duration(seconds: float) -> str:
    """Format a number of seconds in a suitable unit."""
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def positive(text: str) -> int:
    """Parse an argument that must be a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def one_line(error: Exception) -> str:
    """Return an error's message without line breaks and control characters."""
    return plain(" ".join(str(error).split()))


def spelling(file: str) -> str:
    """Convert FILE.py to MODULE and FILE.py:NAME to MODULE:NAME; append the folder unless it is the current one."""
    file, colon, name = file.partition(":")
    path = Path(file).resolve()
    return f"{path.stem}{colon}{name}{'' if path.parent == Path.cwd() else f', run in {path.parent}'}"


def env_id(name: str) -> str:
    """Return the id of an env; for MODULE:NAME, register the class, function or env of that name first."""
    import gymnasium

    from groundling.envs.make import is_server
    from groundling.envs.objects import register_env

    module_name, colon, attribute = name.partition(":")
    if is_server(name) or (not colon and name in gymnasium.registry):
        return name
    if not colon or module_name.endswith(".py"):
        if module_name.endswith(".py"):
            raise ConfigError(f"{name} is in a file: pass MODULE:NAME instead, as in {spelling(name)}")
        hint = did_you_mean(name, gymnasium.registry, 0.7)
        raise ConfigError(
            f"unknown env {name!r}: {hint}pass your class as MODULE:CLASS, as in doors:Doors, or add --import "
            "MODULE if that module registers it"
        )
    sys.path.insert(0, str(Path.cwd()))  # as for --import
    with foreign(f"importing the module {module_name}"):
        try:
            module: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"there is no module {error.name}: run the command in the module's folder") from error
    made = getattr(module, attribute, None)
    if made is None and attribute in gymnasium.registry:
        return attribute
    if made is None:
        hint = did_you_mean(attribute, [*vars(module), *gymnasium.registry], 0.7)
        raise ConfigError(
            f"{module_name} neither defines {attribute} nor registers an env with this id{hint and ': '}{hint}".rstrip()
        )
    return register_env(made)
