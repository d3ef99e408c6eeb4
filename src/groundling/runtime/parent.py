"""Processes that end with the one that started them, however that one ends."""

import ctypes
import os
import signal
import sys

VARIABLE = "GROUNDLING_PARENT"
"""Of the environment: tells a command line of ours which of our processes started it, by its id."""
_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Of the environment: set by torchrun, and by ``accelerate launch``, which is torchrun."""
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Let the kernel kill this process as soon as its parent is gone, whatever it does at that time.

    Only Linux offers this. Elsewhere nothing happens: a process goes on until it next hears from its parent. What
    Linux watches is the parent's thread, so start processes from a thread that is there as long as they are.

    Args:
        parent: The id of the process that started this one; if it has ended meanwhile, this one ends at once.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before it was watched
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_launcher() -> None:
    """`end_with` whoever started this command line, if that was this library or torchrun; not if it was a shell."""
    parent = os.environ.pop(VARIABLE, None)  # it is not for what this process starts
    if parent is not None:
        end_with(int(parent))
    elif _TORCHRUN in os.environ:
        end_with(os.getppid())
