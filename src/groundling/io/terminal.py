"""Plain text for terminals, and output streams that may be closed or full."""

import io
import logging
import os
import sys
import warnings
from typing import Any

_OBEYED = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Control characters of terminals, and characters that change the direction of text; not tab and newline."""


def plain(text: str) -> str:
    """Replace the characters that a terminal obeys, in a text that may come from a file."""
    return text.translate(dict.fromkeys(_OBEYED, "\N{REPLACEMENT CHARACTER}"))


class _PlainRecord(logging.LogRecord):
    """A log record of a library, whose arguments may come from a file."""

    def getMessage(self) -> str:
        return plain(super().getMessage())


def warning_line(text: str) -> str:
    """Format a warning as one line of `plain` text."""
    return f"warning: {plain(' '.join(text.splitlines()))}\n"


def log_plainly() -> None:
    """Make log records and warnings of all libraries `plain` in this process."""
    logging.setLogRecordFactory(_PlainRecord)
    warnings.formatwarning = lambda message, *_, **__: warning_line(str(message))


class _Stream(io.FileIO):
    """A stream that discards everything after its first error, such as a closed pipe or a full disk."""

    problem: OSError | None = None  # The error

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.problem = error
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.fileno())
            os.close(devnull)
            return memoryview(data).nbytes


_streams: dict[str, _Stream] = {}  # Standard output and error by name, after `keep_writing`


def keep_writing() -> None:
    """Make printing never raise; call it first in a process of ours."""
    for number in (0, 1, 2):  # otherwise the next opened file would take the place of a closed stream
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        is_unbuffered = getattr(before, "write_through", False)  # true of stderr
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
    """Return why standard output could not be written, or None; a closed pipe, as of ``head``, is no problem."""
    if "stdout" not in _streams:
        return None
    sys.stdout.flush()
    error = _streams["stdout"].problem
    return None if error is None or isinstance(error, BrokenPipeError) else error.strerror
