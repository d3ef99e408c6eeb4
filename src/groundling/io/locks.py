"""Lock files: one process at a time writes into a folder; a kill releases its locks."""

import errno
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from groundling.errors import RunError
from groundling.io.files import PARTIAL

LOCK = ".lock"  # Name of the lock file in a folder that a command writes into
_PARTIAL_FILE = re.compile(r"\..+\.[0-9a-f]{32}" + re.escape(PARTIAL))
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # Errors of some NFS and Lustre mounts
_PATIENCE = 0.2  # Seconds. `is_locked` of another process holds a free lock for an instant.


def output_lock(folder: Path) -> Path:
    """Return the lock file of a folder that exists only once it is complete."""
    return folder.with_name(f".{folder.name}{LOCK}")


@contextmanager
def locked(path: Path, doing: str, otherwise: str = "name another folder", *, wait: bool = False) -> Iterator[None]:
    """Exclude other processes from a block that writes; the lock file is deleted at its end.

    Unfinished files of killed processes in the lock's folder, or in the folder that the lock is named after, are
    deleted. On a file system without locks, only warn. ``doing`` ("is training in runs/demo") and ``otherwise``
    complete the message of the `RunError`.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a link" if path.is_symlink() else "not a regular file"
        raise RunError(f"{path} is {kind}, where Groundling keeps a lock file: delete it, or {otherwise}")
    lock = FileLock(path, timeout=-1 if wait else _PATIENCE, poll_interval=_PATIENCE / 10, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to the folder {path.parent}: {error}; {otherwise}") from error
    try:
        lock.acquire()
    except Timeout:
        raise RunError(f"another process {doing}: wait for it, or {otherwise}") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise RunError(f"cannot lock {path}: {error}; {otherwise}") from error
        warnings.warn(
            f"{path.parent}: this file system has no locks; do not let two processes do the same work there",
            stacklevel=3,
        )
    try:
        remove_partial_files(path.parent / path.name.removesuffix(LOCK).removeprefix("."))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock of a file; on file systems without locks, if the file exists."""
    if not path.is_file():  # opening a pipe would block
        return False
    try:
        with path.open("r+b" if os.access(path, os.W_OK) else "rb") as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS


def remove_partial_files(folder: Path) -> None:
    """Delete unfinished files of killed processes below a folder; files being written are locked and stay."""
    for path in folder.rglob(f".*{PARTIAL}"):
        if _PARTIAL_FILE.fullmatch(path.name) and not is_locked(path):
            path.unlink(missing_ok=True)
