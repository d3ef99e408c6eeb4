"""Options and messages that the commands share."""

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path

from groundling.errors import ConfigError
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
        help="import a module that registers your own components or envs; FILE.py:NAME adds a function as a reward",
    )
    return parser


def add_overrides(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option for a folder of the user's experiments."""
    parser.add_argument(
        "--config-dir", type=_folder, metavar="FOLDER", help="a folder with your own experiment/*.yaml"
    )


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
