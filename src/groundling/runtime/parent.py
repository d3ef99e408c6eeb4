"""Processes that end with the process that started them, however it ends."""

import ctypes
import os
import signal
import sys

VARIABLE = "GROUNDLING_PARENT"  # Environment variable: id of our process that started a command line
_TORCHRUN = "TORCHELASTIC_RUN_ID"  # Environment variable that torchrun and ``accelerate launch`` set
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have Linux kill this process when the thread that started it ends, or at once if the process ``parent`` has."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before it was watched
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_launcher() -> None:
    """`end_with` the process that started this command line if it was one of ours, or torchrun."""
    parent = os.environ.pop(VARIABLE, None)  # not meant for processes that this one starts
    if parent is not None:
        end_with(int(parent))
    elif _TORCHRUN in os.environ:
        end_with(os.getppid())
