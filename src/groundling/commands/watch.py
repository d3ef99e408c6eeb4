"""`groundling watch`."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.commands.command import Commands, add_command, make_console, positive, warn
from groundling.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from groundling.evaluation.nethack.taste import Taste
    from groundling.evaluation.nethack.watching import Moment

_SECONDS_PER_STEP = 0.1
_SHOWN_MESSAGES = 20
_MOST_SCREENS = 400
"""Of a GIF: of longer watching only every second, third, … screen is kept."""


def add_parser(commands: Commands) -> None:
    """Add `groundling watch`."""
    parser = add_command(commands, "watch", run, "see an agent play NetHack in the terminal")
    parser.add_argument("agent", help="as for evaluate")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. env.id=NetHackScore-v1")
    parser.add_argument(
        "--episodes", type=positive, default=1, help="held-out ones, in order (default: %(default)s)"
    )
    parser.add_argument("--gif", type=Path, metavar="FILE", help="write what was seen as a GIF, too")
    parser.add_argument("--fast", action="store_true", help="do not pause after steps and episodes")


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit status."""
    from groundling.envs.nethack import TASKS
    from groundling.envs.seeds import held_out_seed
    from groundling.evaluation.evaluate import find
    from groundling.evaluation.nethack.agents import make_player
    from groundling.evaluation.nethack.taste import make_taste
    from groundling.evaluation.nethack.watching import moments

    target = find(arguments.agent, arguments.overrides, warn)
    env = target.config.env
    if env.id not in TASKS:
        raise ConfigError(
            f"watch shows NetHack, and {arguments.agent} plays {env.id}: its episodes are in `groundling report`"
        )
    player, console = make_player(target), make_console()
    taste = make_taste(target.config, target.checkpoint)
    film = _Film()
    for number in range(arguments.episodes):
        seed = held_out_seed(number)
        episode = moments(player(seed), env.id, env.args, seed, taste)
        last = _show(episode, console, 0.0 if arguments.fast else _SECONDS_PER_STEP, film)
        console.print(_summary(last, number, taste))
        if console.is_terminal and not arguments.fast and number + 1 < arguments.episodes:
            console.input("Enter for the next episode ")
    if arguments.gif is not None:
        film.save(arguments.gif)
        console.print(f"written to {arguments.gif}", highlight=False, markup=False)
    return 0


class _Film:
    """Screens for a GIF: when there are too many, every other one is dropped, now and from then on."""

    def __init__(self) -> None:
        self._every, self._seen = 1, 0
        self._moments: list[Moment] = []

    def take(self, moment: "Moment") -> None:
        if moment.ended or self._seen % self._every == 0:
            self._moments.append(moment)
        self._seen += 1
        if len(self._moments) > _MOST_SCREENS:
            self._moments, self._every = self._moments[::2], 2 * self._every

    def save(self, path: Path) -> None:
        from groundling.envs.nethack.recording import save_gif

        path.parent.mkdir(parents=True, exist_ok=True)
        save_gif((moment.captioned() for moment in self._moments), path)


def _show(episode: "Iterator[Moment]", console: "Console", pause: float, film: _Film) -> "Moment":
    """Show an episode; its last moment."""
    from rich.live import Live

    from groundling.envs.nethack.observation import message_text
    from groundling.evaluation.nethack.watching import is_worth_telling

    last = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for last in episode:
            film.take(last)
            if console.is_terminal:
                live.update(_picture(last), refresh=True)
                time.sleep(pause)
            elif is_worth_telling(last):
                console.print(f"{last.told()} · {message_text(last.message)}", markup=False, highlight=False)
    assert last is not None
    if not console.is_terminal:
        console.print(last.screen.text(), markup=False, highlight=False)
    return last


def _picture(moment: "Moment") -> "Text":
    """The terminal in NetHack's colours, and the figures below it."""
    from rich.text import Text

    screen, picture = moment.screen, Text(no_wrap=True)
    for line, colours in zip(screen.text().split("\n"), screen.colours, strict=True):
        for character, colour in zip(line, colours.tolist(), strict=False):
            picture.append(character, style=f"color({colour or 7})")  # black on black would not be seen
        picture.append("\n")
    picture.append("\n" + moment.told(), style="bold")
    return picture


def _summary(last: "Moment", number: int, taste: "Taste | None") -> "Table":
    """An episode's messages, the most frequent first."""
    from rich.table import Table

    from groundling.evaluation.nethack.evaluate import top_messages

    told = f"episode {number} · {last.step:,} steps · return {last.episode_return:.5g}"
    if taste is not None:
        told += f" · intrinsic return {taste.intrinsic_return(last.counts):.4g}"
    table = Table(title=f"{told} · {len(last.counts)} distinct messages")
    table.add_column("times", justify="right")
    if taste is not None:
        table.add_column("normalised reward", justify="right")
    table.add_column("message")
    for row in top_messages(last.counts, taste, _SHOWN_MESSAGES):
        figures = [str(row["count"])]
        if taste is not None:
            figures.append(f"{row['normalised_reward']:+.2f}")
        table.add_row(*figures, row["message"] or "(none)")
    return table
