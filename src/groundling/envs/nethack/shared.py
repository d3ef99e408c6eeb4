"""Arrays in shared memory, written by envs and read by a learner."""

import mmap
import os
import tempfile
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from groundling.envs.nethack.observation import FEATURES, MESSAGE_LENGTH, WINDOW


class EndStatus(IntEnum):
    """Status of an episode, with nle's numbers."""

    ABORTED = -1
    RUNNING = 0
    DEATH = 1
    TASK_SUCCESSFUL = 2


FIGURES = ("score", "dlvl", "gold", "xlvl", "turns", "scout", "end_status")
"""Figures of an episode at its end: see `groundling.envs.nethack.tasks.NetHackTask`."""

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
}
"""Type and shape of each env's values that change at every step."""
LAST_FIELDS = ("chars", "colours", "vector", "messages")
"""Values with a copy ``last_…`` of the end of an episode that ran out of steps."""
EPISODE_FIELDS: dict[str, tuple[type, tuple[int, ...]]] = {
    "next_episode": (np.int64, ()),
    "ended_episode": (np.int64, ()),
    "ended_return": (np.float64, ()),
    "ended_length": (np.int64, ()),
    "ended_figures": (np.int64, (len(FIGURES),)),
    **{f"last_{name}": STEP_FIELDS[name] for name in LAST_FIELDS},
}
"""The same for values that change when an episode begins or ends."""

BYTES_PER_FRAME = sum(
    np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int)) for dtype, shape in STEP_FIELDS.values()
)

_ALIGNMENT = 64  # bytes: a cache line


@dataclass
class SharedArrays:
    """One array ``(num_envs, ...)`` for each field, in memory that a child process maps by its file descriptor.

    The file has no name, so it disappears with the processes, however they end.
    """

    fd: int
    arrays: dict[str, np.ndarray]

    @classmethod
    def create(cls, num_envs: int) -> "SharedArrays":
        size = _layout(num_envs)[1]
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("groundling-nethack", 0)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, size)
        return cls.attach(fd, num_envs)

    @classmethod
    def attach(cls, fd: int, num_envs: int) -> "SharedArrays":
        """Map the memory that another process created."""
        layout, size = _layout(num_envs)
        memory = mmap.mmap(fd, size)
        arrays = {
            name: np.ndarray((num_envs, *shape), dtype, buffer=memory, offset=offset)
            for name, (offset, dtype, shape) in layout.items()
        }
        return cls(fd, arrays)

    def close(self) -> None:
        """Close the descriptor; the arrays stay valid while they are referenced."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _layout(num_envs: int) -> tuple[dict[str, tuple[int, type, tuple[int, ...]]], int]:
    """Return offset, type and shape of each field, and the size of the block in bytes."""
    layout, offset = {}, 0
    for name, (dtype, shape) in (STEP_FIELDS | EPISODE_FIELDS).items():
        layout[name] = (offset, dtype, shape)
        size = num_envs * np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return layout, offset
