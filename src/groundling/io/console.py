"""Where people read what goes on: a terminal, a notebook, or a file."""

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
    """Whether what stands there can be drawn anew: in a terminal, and in a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


@contextmanager
def episode_bars(
    console: "Console", num_episodes: int, what: str = "episodes"
) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Gives a function that shows an agent's progress, from its name."""
    from rich.progress import Progress, TextColumn

    name_column = TextColumn("{task.description}", style="progress.description", markup=False)
    columns = (name_column, *Progress.get_default_columns()[1:])  # whose own first one reads names as markup
    with Progress(*columns, console=console, disable=not is_live(console), transient=True) as progress:

        def on_agent(name: str) -> Callable[[], None]:
            task = progress.add_task(name, total=num_episodes)

            def on_episode() -> None:
                progress.advance(task)  # not before: who cannot play is left out
                done = round(progress.tasks[task].completed)
                if not is_live(console) and (done == 1 or done % max(num_episodes // 4, 1) == 0):
                    console.print(f"{name}: {done} of {num_episodes} {what} done", highlight=False)

            return on_episode

        yield on_agent


def warn(text: str) -> None:
    """Tell the user, beside the output proper."""
    print(warning_line(text), end="", file=sys.stderr)


def make_console() -> "Console":
    """Where the user reads: `plain` text, and no markup; of several processes the first one speaks."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> "Iterable[Segment]":
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else plain(text), style, control)  # controls are rich's own

    # A file's name or setting may be [/b] or [link=…], which rich would fail on or obey, or :smile:.
    return PlainConsole(markup=False, emoji=False, quiet=os.environ.get("RANK", "0") != "0")
