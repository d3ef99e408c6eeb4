"""Errors whose message is meant for the user: the command line prints them as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class GroundlingError(Exception):
    """Something the user can mend; the message says what was wrong, what was expected, and how."""


class ConfigError(GroundlingError):
    """A key, a value, an id or a combination of them that cannot be run."""


class UnusedKey(ConfigError):
    """A key that is set, and that nothing which the config chooses uses."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class UnknownEnv(ConfigError):
    """An env that nothing has registered in this process: the module that does is not imported, or it is misspelt."""


class ForeignError(GroundlingError):
    """Code that is not ours raised: an env, a reward, a judge. Its ``__cause__`` is shown with its traceback.

    An exit that such code asks for, too, is an error: a run that is not complete must not end as if it were.
    """


class RunError(GroundlingError):
    """A run that cannot go on: its folder, its checkpoints, its device or its figures."""


class TimeIsUp(SystemExit):
    """Whoever started the process will soon end it: it is to stop."""


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise exhausted memory of the machine or a GPU, in errors of Python, NumPy, PyTorch and safetensors."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        (isinstance(error, RuntimeError | OSError) or type(error).__name__ == "SafetensorError")
        and any(words in said for words in _NO_MEMORY)
    )


def pass_out_of_memory(error: BaseException) -> None:
    """Raise ``error`` again if memory has run out, which says nothing about the model or file that needed it."""
    if is_out_of_memory(error):
        raise error


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Tell whose code it was that raised in the block.

    Args:
        what: Whose, and at what: the beginning of a message.

    Raises:
        ForeignError: it raised, or asked to exit. What is ours, a full disk, memory that has run out, a launcher's
            time limit and Ctrl-C pass.
    """
    try:
        yield
    except (GroundlingError, KeyboardInterrupt, TimeIsUp, OSError):
        raise
    except BaseException as error:
        if is_out_of_memory(error):
            raise
        raise ForeignError(f"{what} raised {type(error).__name__}; its traceback follows") from error
