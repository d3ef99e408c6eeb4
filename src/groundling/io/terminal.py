"""What is printed: text that commands no terminal, on streams that may get lost.

They get lost to a reader that has gone, a full disk, a closed terminal.
"""

import io
import logging
import os
import sys
import warnings
from typing import Any

_OBEYED = (
    *range(0x09),
    *range(0x0B, 0x20),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
"""Characters that a terminal obeys, and those that turn the order of what stands around them."""


def plain(text: str) -> str:
    """A text that may be a file's, as a terminal shows it without obeying it: it sets no title and hides no words."""
    return text.translate(dict.fromkeys(_OBEYED, "\N{REPLACEMENT CHARACTER}"))


class _Record(logging.LogRecord):
    """What a library logs, as `plain` text: the names in it may be a file's."""

    def getMessage(self) -> str:
        return plain(super().getMessage())


def warning_line(text: str) -> str:
    """A warning as every command prints it: one line of `plain` text."""
    return f"warning: {plain(' '.join(text.splitlines()))}\n"


def log_plainly() -> None:
    """Print log records and warnings of any library as `plain` text from now on; for processes of ours."""
    logging.setLogRecordFactory(_Record)
    warnings.formatwarning = lambda message, *_, **__: warning_line(str(message))


class _Stream(io.FileIO):
    """Where a process writes until that fails; from then on, nowhere."""

    problem: OSError | None = None
    """Why something could not be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


_streams: dict[str, _Stream] = {}
"""By name, this process's."""


def keep_writing() -> None:
    """Let nothing that this process prints raise from now on; for the first lines of a process of ours."""
    for number in (0, 1, 2):  # where one is closed, the next file that is opened would take its place
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        is_through = getattr(before, "write_through", False)  # as stderr is: then no line waits for the next
        _streams[name] = _Stream(number, "w", closefd=False)
        after = io.TextIOWrapper(
            io.BufferedWriter(_streams[name]),
            encoding=getattr(before, "encoding", "utf-8"),
            errors=getattr(before, "errors", "backslashreplace"),
            line_buffering=is_through or getattr(before, "line_buffering", True),
            write_through=is_through,
        )
        setattr(sys, name, after)


def problem() -> str | None:
    """Why standard output could not be written; None if it could, or if its reader, such as head, has seen enough."""
    if "stdout" not in _streams:
        return None
    sys.stdout.flush()
    error = _streams["stdout"].problem
    return None if error is None or isinstance(error, BrokenPipeError) else error.strerror
