"""Arrays in shared memory, written by envs and read by a learner."""

import mmap
import os
import tempfile
from enum import IntEnum

import numpy as np

from groundling.envs.nethack.observation import FEATURES, MESSAGE_LENGTH, WINDOW


class EndStatus(IntEnum):
    """Status of an episode, with nle's numbers."""

    ABORTED = -1
    RUNNING = 0
    DEATH = 1
    TASK_SUCCESSFUL = 2


FIGURES = ("score", "dlvl", "gold", "xlvl", "turns", "scout", "end_status")  # at the end: see `NetHackTask`

STEP_FIELDS: dict[str, tuple[type, tuple[int, ...]]] = {
    "actions": (np.uint8, ()),
    "chars": (np.uint8, (WINDOW, WINDOW)),
    "colours": (np.uint8, (WINDOW, WINDOW)),
    "vector": (np.float32, (len(FEATURES),)),
    "messages": (np.uint8, (MESSAGE_LENGTH,)),
    "message_ids": (np.int64, ()),
    "counts": (np.float32, ()),
    "rewards": (np.float32, ()),
    "dones": (np.bool_, ()),
    "cut": (np.bool_, ()),
}  # type and shape of each env's values that change at every step
LAST_FIELDS = ("chars", "colours", "vector", "messages")  # also kept as ``last_…`` where an episode ran out of steps
_FIELDS: dict[str, tuple[type, tuple[int, ...]]] = {
    **STEP_FIELDS,
    "next_episode": (np.int64, ()),
    "ended_episode": (np.int64, ()),
    "ended_return": (np.float64, ()),
    "ended_length": (np.int64, ()),
    "ended_figures": (np.int64, (len(FIGURES),)),
    **{f"last_{name}": STEP_FIELDS[name] for name in LAST_FIELDS},
}
_CACHE_LINE = 64  # bytes


class SharedArrays:
    """One array ``(num_envs, ...)`` for each field, in memory that a child process maps by its file descriptor ``fd``
    (None: create it). The file has no name, so it disappears with the processes, however they end.
    """

    def __init__(self, num_envs: int, fd: int | None = None) -> None:
        offsets, size = {}, 0
        for name, field in _FIELDS.items():
            offsets[name] = size
            size += -(-num_envs * np.dtype(field).itemsize // _CACHE_LINE) * _CACHE_LINE
        self.fd = _anonymous_file(size) if fd is None else fd
        memory = mmap.mmap(self.fd, size)
        self.arrays = {
            name: np.ndarray((num_envs, *shape), dtype, memory, offsets[name])
            for name, (dtype, shape) in _FIELDS.items()
        }

    def close(self) -> None:
        """Close the descriptor; the arrays stay valid while they are referenced."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("groundling-nethack", 0)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
