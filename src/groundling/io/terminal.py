"""Plain text for terminals, and output streams that may be closed or full."""

import importlib.util
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    columns = (name_column, *Progress.get_default_columns()[1:])  # the first default column interprets markup
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
                yield Segment(text if control else plain(text), style, control)  # control codes come from rich itself

    # Names and settings from files may contain [/b], [link=…] or :smile:, which rich would interpret.
    return PlainConsole(markup=False, emoji=False, highlight=False, quiet=os.environ.get("RANK", "0") != "0")


_OBEYED = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Terminal control characters and characters that change the text direction, except for tab and newline."""


def plain(text: str) -> str:
    """Replace control characters in a string that may come from a file."""
    return text.translate(dict.fromkeys(_OBEYED, "\N{REPLACEMENT CHARACTER}"))


class _PlainRecord(logging.LogRecord):
    """A library's log record; its arguments may come from a file."""

    def getMessage(self) -> str:
        return plain(super().getMessage())


def warning_line(text: str) -> str:
    """Format a warning as one line of `plain` text."""
    return f"warning: {plain(' '.join(text.splitlines()))}\n"


def log_plainly() -> None:
    """Pass the log records and warnings of all libraries in this process through `plain`."""
    logging.setLogRecordFactory(_PlainRecord)
    warnings.formatwarning = lambda message, *_, **__: warning_line(str(message))


class _Stream(io.FileIO):
    """A stream that discards everything after its first error, such as a closed pipe or a full disk."""

    problem: OSError | None = None  # The first error

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.fileno())
            os.close(devnull)
            return memoryview(data).nbytes


_streams: dict[str, _Stream] = {}  # Standard output and error by name, as set by `keep_writing`


def keep_writing() -> None:
    """Prevent printing from raising errors; call it at the start of a process."""
    for number in (0, 1, 2):  # otherwise the next opened file would take a closed stream's descriptor
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        is_unbuffered = getattr(before, "write_through", False)  # True for stderr
        _streams[name] = _Stream(number, "w", closefd=False)
        after = io.TextIOWrapper(
            io.BufferedWriter(_streams[name]),
            encoding=getattr(before, "encoding", "utf-8"),
            errors=getattr(before, "errors", "backslashreplace"),
            line_buffering=is_unbuffered or getattr(before, "line_buffering", True),
            write_through=is_unbuffered,
        )
        setattr(sys, name, after)


def problem() -> str | None:
    """Return why writing to standard output failed, or None; a closed pipe, as with ``head``, is not a problem."""
    if "stdout" not in _streams:
        return None
    sys.stdout.flush()
    error = _streams["stdout"].problem
    return None if error is None or isinstance(error, BrokenPipeError) else error.strerror
