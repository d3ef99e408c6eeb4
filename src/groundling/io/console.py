"""Console output in a terminal, a notebook or a file."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from groundling.io.terminal import plain, warning_line

if TYPE_CHECKING:
    from rich.console import Console


def is_live(console: "Console") -> bool:
    """Return True if a display can be updated in place: in a terminal, or a notebook with ipywidgets."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


@contextmanager
def episode_bars(
    console: "Console", num_episodes: int, unit: str = "episodes"
) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Yield a function that starts a progress bar for an agent and returns the function that advances it."""
    from rich.progress import Progress, TextColumn

    name_column = TextColumn("{task.description}", style="progress.description", markup=False)
    columns = (name_column, *Progress.get_default_columns()[1:])  # the first default column reads markup
    with Progress(*columns, console=console, disable=not is_live(console), transient=True) as progress:

        def on_agent(name: str) -> Callable[[], None]:
            task = progress.add_task(name, total=num_episodes)

            def on_episode() -> None:
                progress.advance(task)
                done = round(progress.tasks[task].completed)
                if not is_live(console) and (done == 1 or done % max(num_episodes // 4, 1) == 0):
                    console.print(f"{name}: {done} of {num_episodes} {unit} done", highlight=False)

            return on_episode

        yield on_agent


def warn(text: str) -> None:
    """Print a warning to standard error."""
    print(warning_line(text), end="", file=sys.stderr)


def make_console() -> "Console":
    """Return a console for standard output that prints plain text without markup; silent except in process 0."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> "Iterable[Segment]":
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else plain(text), style, control)  # controls are rich's own

    # Names and settings from files may contain [/b], [link=…] or :smile:, which rich would obey.
    return PlainConsole(markup=False, emoji=False, highlight=False, quiet=os.environ.get("RANK", "0") != "0")
