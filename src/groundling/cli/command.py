"""What the commands share: a parser each, a console, and how they tell what goes on."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.errors import ConfigError
from groundling.io.terminal import plain

if TYPE_CHECKING:
    from groundling.evaluation.target import Target

INTERRUPTED = 130
"""Exit status of a run that was asked to stop before its end, as a shell gives it for Ctrl-C."""

Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers gives


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    *,
    examples: str,
) -> argparse.ArgumentParser:
    """Add the command ``name``, which ``run`` carries out; returns its parser.

    Args:
        commands: Those of the command line.
        name: What it is called.
        run: Carries it out; gives its exit status.
        help: What it does, in a line.
        examples: Command lines that work, one a line, each with what it is for; shown below the options.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help,
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of yours that registers components or envs",
    )
    return parser


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Let a command read experiments of the user's."""
    parser.add_argument(
        "--config-dir", type=_folder, metavar="FOLDER", help="a folder with your own experiment/*.yaml"
    )


def _folder(text: str) -> Path:
    """An argument that must be a folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} is no folder: name the one that holds your experiment/*.yaml"
        )
    return Path(text)


def check_used(config_dir: Path | None, players: "Sequence[tuple[str, Target]]") -> None:
    """Check that a folder of experiments is named for one.

    Args:
        config_dir: The folder.
        players: Who plays, by the names that were given.

    Raises:
        ConfigError: there is one, and nobody who plays is an experiment.
    """
    if config_dir is None:
        return
    from groundling.config.compose import experiments

    known = experiments(config_dir)
    if not any(target.agent == "zero-shot" and name in known for name, target in players):
        names = ",".join(name for name, _ in players)
        raise ConfigError(
            f"--config-dir {config_dir} does nothing: {names} is no experiment; leave it out, or name one"
        )


def duration(seconds: float) -> str:
    """Seconds as they are told: whole seconds or minutes, or tenths of hours."""
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if minutes < 2
        else f"{minutes:.0f} min"
        if minutes < 120
        else f"{minutes / 60:.1f} h"
    )


def positive(text: str) -> int:
    """An argument that must be a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def one_line(error: Exception) -> str:
    """What an error says, without line breaks, and as `plain` text."""
    return plain(" ".join(str(error).split()))
