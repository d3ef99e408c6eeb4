"""Errors with messages for the user; the command line prints each message on one line."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_MOST_NAMES = 25  # Maximum number of names in a message


class GroundlingError(Exception):
    """An error that the user can fix; the message says what was wrong, what was expected, and how to fix it.
    Every instance is a `ConfigError` or a `RunError`.
    """


class ConfigError(GroundlingError):
    """An invalid key, value, id, model or data file, or an invalid combination of them."""


class UnusedKey(ConfigError):
    """A key that has no effect because no chosen component uses it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class UnknownEnv(ConfigError):
    """An env that is not registered in this process: its module is not imported, or its id is misspelt."""


class RunError(GroundlingError):
    """A run that cannot continue because of its folder, checkpoints, device or metrics, or because user code failed."""


class ForeignError(RunError):
    """User code (an env, reward, judge, …) raised an error or exited. Its ``__cause__`` is shown with a traceback."""


class TimeIsUp(SystemExit):
    """The process is close to its time limit and must stop."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for out-of-memory errors from Python, NumPy, PyTorch and safetensors, on the CPU or a GPU."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        (isinstance(error, RuntimeError | OSError) or type(error).__name__ == "SafetensorError")
        and any(words in said for words in _NO_MEMORY)
    )


def pass_out_of_memory(error: BaseException) -> None:
    """Re-raise ``error`` if it is an out-of-memory error, so that the file being read is not reported as invalid."""
    if is_out_of_memory(error):
        raise error


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Raise `ForeignError` if user code raises or exits; the message starts with ``what``, the name of that code.

    Not converted: Groundling's errors, `OSError` other than `ConnectionError`, lack of memory, time limits and Ctrl-C.
    """
    try:
        yield
    except (GroundlingError, KeyboardInterrupt, TimeIsUp):
        raise
    except BaseException as error:  # also SystemExit: an incomplete run must not end as if it were complete
        if is_out_of_memory(error) or (isinstance(error, OSError) and not isinstance(error, ConnectionError)):
            raise
        raise ForeignError(f"{what} raised {type(error).__name__}; its traceback follows") from error


@contextmanager
def importing(what: str, extra: str) -> Iterator[None]:
    """Raise `ConfigError` if a package that one of Groundling's extras installs cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{what} is not installed: pip install 'groundling[{extra}]' ({error})") from error


def warn_caller(message: str) -> None:
    """Issue a `UserWarning` that points to the line outside this package from which it was called."""
    frame, depth, level = sys._getframe(), 1, 1
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package == __package__ or (level == depth and package in ("functools", "contextlib", "torch")):
            level = depth + 1
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    warnings.warn(message, stacklevel=level)


def did_you_mean(name: str, known: Iterable[str], cutoff: float) -> str:
    """Suggest the closest names, ignoring case; return "" if none reaches `difflib`'s similarity ``cutoff``."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(by_lower[one]) for one in near)}? " if near else ""


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return an error message for an unknown ``name``, with the closest known names and the advice ``otherwise``."""
    names = sorted(known)
    hint = did_you_mean(name, names, 0.5) + otherwise
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"unknown {kind} {name!r}: {hint}available: {', '.join(names[:_MOST_NAMES]) or 'none'}{more}"
