"""Atomic writes: a file or folder is complete or absent, even if the process is killed."""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from groundling.errors import ConfigError, RunError, warn_caller

PARTIAL = ".partial"  # Part of the names of unfinished files and folders


def cache() -> Path:
    """Return the user's cache folder; everything in it can be recreated."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "groundling"


def refuse_missing(name: str) -> None:
    """Raise `ConfigError` for a missing path in an existing local folder, so that the hub is not queried for it."""
    if "/" in name and not Path(name).exists() and (folder := Path(name).parent).is_dir():
        raise ConfigError(f"there is no folder {name}. {folder} is a local folder, so the hub is not queried for it")


def write_atomically(path: Path, text: str) -> None:
    """Write text to a file; if an error occurs, the existing file is left unchanged."""
    with _replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` to create a file next to ``path``, then rename it into place."""
    with _replacing(path) as partial:
        write(partial)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, locked while it is written, which replaces ``path`` at the end of the block."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with partial.open("xb") as file:
            with suppress(OSError):  # some network file systems have no locks
                lock_descriptor(file.fileno(), blocking=False)
            yield partial
            sync(partial)  # otherwise a crash of the machine could leave an empty file under the new name
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_result(texts: Mapping[Path, str], mark: Path, stale: Iterable[Path] = ()) -> None:
    """Replace the files of one result so that ``mark`` never exists together with files of a different result.

    The old ``mark`` and ``stale`` files are deleted, then the new files are renamed into place, ``mark`` last. If the
    disk is full, the old result is kept. If the process is killed, the old or new result remains, or ``mark`` is gone.
    """
    with ExitStack() as renames:  # unwinds in reverse order
        for path in sorted(texts, key=lambda path: path != mark):
            path.parent.mkdir(parents=True, exist_ok=True)
            renames.enter_context(_replacing(path)).write_text(texts[path], encoding="utf-8")
        for path in (mark, *stale):
            if path == mark or path not in texts:
                path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into, which replaces the empty or absent ``folder`` at the end of the block."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: choose a new folder")
    partial = folder.with_name(f"{PARTIAL}-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def share_mode(path: Path, other: Path) -> None:
    """Copy permissions from ``other`` to ``path``; safetensors ignores the umask and grants only the owner access."""
    path.chmod(other.stat().st_mode & 0o777)


LOCK = ".lock"  # Name of the lock file in a folder that a command writes into
_PARTIAL_FILE = re.compile(r"\..+\.[0-9a-f]{32}" + re.escape(PARTIAL))
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # Errors on some NFS and Lustre mounts
_PATIENCE = 0.2  # Seconds to wait for a lock, which another process's `is_locked` may hold briefly


def output_lock(folder: Path) -> Path:
    """Return the lock file for a folder that appears only when it is complete."""
    return folder.with_name(f".{folder.name}{LOCK}")


@contextmanager
def locked(path: Path, doing: str, otherwise: str = "choose another folder", *, wait: bool = False) -> Iterator[None]:
    """Hold a lock, so that no other process runs the same block; the lock file is deleted at the end.

    Unfinished files of killed processes in the lock's folder, or in the folder that the lock is named after, are
    deleted. On a file system without locks, only a warning is issued. ``doing`` ("is training in runs/demo") and
    ``otherwise`` complete the message of the `RunError`.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a link" if path.is_symlink() else "not a regular file"
        raise RunError(f"{path} is {kind}, but Groundling needs a lock file there: delete it, or {otherwise}")
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
        warn_caller(f"{path.parent}: this file system lacks locks; do not let two processes write to one folder")
    try:
        remove_partial_files(path.parent / path.name.removesuffix(LOCK).removeprefix("."))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock on a file or, on file systems without locks, if the file exists."""
    if not path.is_file():  # opening a pipe would block
        return False
    try:
        with path.open("r+b" if os.access(path, os.W_OK) else "rb") as file:
            return not lock_descriptor(file.fileno(), blocking=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS


def is_unused(folder: Path) -> bool:
    """Return True if a folder is empty, except for a lock and files that a killed process left unfinished."""
    return not any(path.name != LOCK and not path.name.endswith(PARTIAL) for path in folder.iterdir())


def remove_partial_files(folder: Path) -> None:
    """Delete unfinished files of killed processes below a folder; files being written are locked and kept."""
    for path in folder.rglob(f".*{PARTIAL}"):
        if _PARTIAL_FILE.fullmatch(path.name) and not is_locked(path):
            path.unlink(missing_ok=True)
