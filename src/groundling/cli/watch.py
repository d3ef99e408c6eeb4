"""The `groundling watch` command."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.cli.command import Commands, add_command, add_config_dir, add_overrides, positive
from groundling.errors import ConfigError
from groundling.io.terminal import make_console, warn

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from groundling.reports.page import GifWriter
    from groundling.worlds.episode import Frame, Summary

_SECONDS_PER_STEP = 0.1
_BAR = 24  # Width of the bar for a probability of 1, in characters


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "watch",
        run,
        "show an agent's episodes or generated texts in the terminal",
        examples="""
        groundling watch runs/demo                  a trained agent
        groundling watch expert --gif bot.gif       BabyAI's bot, as a GIF
        """,
    )
    add = parser.add_argument
    add("agent", help="the agent to watch, specified as for `groundling evaluate`")
    add_overrides(parser, "e.g. world.env=NetHackScore-v1")
    add_config_dir(parser)
    add("--suite", help="a test suite of `groundling evaluate` (default: the agent's own world)")
    text = "number of held-out episodes to show (default: %(default)s)"
    add("--episodes", type=positive, default=1, help=text)
    add("--gif", type=Path, metavar="FILE", help="also write a GIF")
    add("--fast", action="store_true", help="do not pause between steps and episodes")


def run(arguments: argparse.Namespace) -> int:
    from groundling.evaluation.target import find
    from groundling.reports.page import GifWriter
    from groundling.worlds.world import Player

    if arguments.gif is not None and arguments.gif.suffix.lower() != ".gif":
        raise ConfigError(f"--gif must be a file name that ends in .gif, got {arguments.gif}")
    target = find(arguments.agent, arguments.overrides, warn, config_dir=arguments.config_dir)
    console = make_console()
    suites = target.world.find_suites(arguments.suite or next(iter(target.world.suites)))
    if len(suites) > 1:
        raise ConfigError(f"--suite {arguments.suite} contains several suites: choose one of {', '.join(suites)}")
    there = target.under(suites[0])
    world, player = there.world, Player(there.agent, there.policy(there.agent))
    gif = None if arguments.gif is None else GifWriter()
    pause = 0.0 if arguments.fast else _SECONDS_PER_STEP
    for number in range(arguments.episodes):
        _show(world.watch(player, number), console, pause, gif)
        if console.is_terminal and not arguments.fast and number + 1 < arguments.episodes:
            console.input("Press Enter for the next episode ")
    if gif is not None:
        gif.save(arguments.gif)
        console.print(f"written to {arguments.gif}", soft_wrap=True)
    return 0


def _show(episode: "Iterator[Frame]", console: "Console", pause: float, gif: "GifWriter | None") -> None:
    """Show an episode frame by frame in a terminal; elsewhere, print only the notable frames."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True) as live:
        for moment in episode:
            if gif is not None:
                gif.add(moment)
            if console.is_terminal:
                live.update(_view(moment), refresh=True)
                time.sleep(pause)
            elif moment.is_notable:
                console.print("\n".join(moment.lines), soft_wrap=True)
    if moment.summary is not None:
        console.print(_table(moment.summary))


def _view(moment: "Frame") -> "RenderableType":
    """Return the text of a frame with a bar for each action's probability."""
    from rich.text import Text

    if moment.screen is not None:
        return moment.screen
    text = Text("\n".join(moment.lines))
    probabilities = moment.probabilities or {}
    width = max(map(len, probabilities), default=0)
    for action, probability in probabilities.items():
        bar = "█" * round(_BAR * probability)
        style = "bold cyan" if action == moment.action else "dim"
        text.append(f"\n  {action!s:{width}}  {probability:.2f} {bar}", style=style)
    return text


def _table(summary: "Summary") -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    if not summary.header:
        return Text(summary.title, style="bold")
    table = Table(title=summary.title)
    for name in summary.header:
        table.add_column(name)
    for row in summary.rows:
        table.add_row(*map(Text, row))
    return table
