"""Writing files so that they are whole or as they were, locking them, and reading those that come from elsewhere."""

import csv
import errno
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from typing import IO, Any, TextIO

from groundling.errors import ConfigError, GroundlingError, RunError

_LONGEST_VALUE = 2**31 - 1
"""Characters of a value of a CSV file; the csv module's own limit is 131,072, and documents are longer."""
PARTIAL = ".partial"
"""How the names of files end that are not whole yet."""
_PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{32}" + re.escape(PARTIAL))
_ATTEMPTS, _SECONDS_BETWEEN = 10, 0.02
"""To take a lock."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems without locks say: some of NFS, Lustre as it is often mounted."""
_NO_REGULAR_FILE = (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO)
"""What `_open_as_it_is` says of links (FreeBSD: EMLINK), of folders, and of pipes that nobody reads."""


LOCK = ".lock"
"""In a folder that a command writes into: held by the one process that does."""


def cache() -> Path:
    """The user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "groundling"


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place; on an error ``path`` stays as it was."""
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file next to ``path`` and rename it into place; see `_replacing`."""
    with _replacing(path) as partial:
        write(partial)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new file next to ``path``, renamed into place when the block ends; deleted when it raises.

    Several processes and machines may do so at once: each writes a file of its own, and the last one stays. The new
    file is locked while it is written, so that `remove_partials` can tell it from one that a killed process left.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        with partial.open("xb") as file:
            lock_file(file, lambda text: None)
            yield partial
            sync(partial)  # or a machine that goes down may leave the new name and nothing behind it
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_result(texts: Mapping[Path, str], mark: Path, stale: Iterable[Path] = ()) -> None:
    """Replace files that are one result, so that ``mark`` never stands with files of another one.

    All files are written next to their places, then the old ``mark`` is deleted, the others are renamed into place,
    and ``mark`` is renamed last. A full disk leaves the earlier result; a kill leaves one of the two, or no mark.

    Args:
        texts: By path, the content of each file, that of ``mark`` among them.
        mark: The file whose existence says that the result is complete.
        stale: Files of the earlier result, deleted unless they are in ``texts``.
    """
    with ExitStack() as renames:  # which it makes in reverse order
        for path in sorted(texts, key=lambda path: path != mark):
            path.parent.mkdir(parents=True, exist_ok=True)
            renames.enter_context(_replacing(path)).write_text(texts[path], encoding="utf-8")
        for path in (mark, *stale):
            if path == mark or path not in texts:
                path.unlink(missing_ok=True)


def remove_partials(folder: Path) -> None:
    """Delete the files below a folder that killed processes left half-written; those being written are locked."""
    for path in folder.rglob(f".*{PARTIAL}"):
        if _PARTIAL_NAME.fullmatch(path.name) and not is_locked(path):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, through to the disk.

    Raises:
        OSError: they cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which is renamed to ``folder`` at the end: there as a whole or not at all.

    Raises:
        ConfigError: ``folder`` holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} holds something already: name a new folder")
    partial = folder.with_name(folder.name + PARTIAL)
    rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        rmtree(partial, ignore_errors=True)
        raise
    partial.replace(folder)


def holds_something(folder: Path) -> bool:
    """Whether there is such a folder with anything in it but its lock."""
    return folder.is_dir() and any(path.name != LOCK for path in folder.iterdir())


def share_mode(path: Path, other: Path) -> None:
    """Let ``path`` be readable and writable by whom ``other`` is.

    Some libraries write files that only their owner can read, whatever the umask.
    """
    path.chmod(other.stat().st_mode & 0o777)


@contextmanager
def locked(
    path: Path, doing: str, warn: Callable[[str], None], otherwise: str = "name another folder"
) -> Iterator[None]:
    """Keep every other process out of a block that writes; a kill releases the lock.

    What earlier processes left half-written (`remove_partials`) in the lock's folder, or in the folder that the lock is
    named after, is deleted.

    Args:
        path: The lock's file, which exists while the block runs, and after a kill; its folder is made.
        doing: What another process does that holds the lock: ``is training in runs/demo``, say.
        warn: Told if the file system has no locks: then no process is kept out.
        otherwise: What to do if it cannot be had, for messages.

    Raises:
        RunError: another process holds the lock, or there can be none.
    """
    with _open_lock(path, doing, warn, otherwise):
        remove_partials(path.parent / path.name.removesuffix(LOCK).removeprefix("."))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _open_lock(path: Path, doing: str, warn: Callable[[str], None], otherwise: str) -> IO[Any]:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_to_lock(path, otherwise)
        except OSError as error:
            raise RunError(f"cannot write to the folder {path.parent}: {error}; {otherwise}") from error
        try:
            is_free = lock_file(file, warn)
        except OSError as error:
            file.close()
            raise RunError(f"cannot lock {path}: {error}; {otherwise}") from error
        if not is_free:
            file.close()
            raise RunError(f"another process {doing}: wait for it, or {otherwise}")
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            return file
        file.close()  # whoever held it has removed it meanwhile: it keeps nobody out any more


def open_to_lock(path: Path, otherwise: str) -> IO[Any]:
    """Open a file that is there to be locked; it is made if it is not there.

    Args:
        path: The file; its folder is there.
        otherwise: What to do if it cannot be had, for messages.

    Raises:
        OSError: it cannot be made.
        RunError: it is a link, or no file.
    """
    if not path.is_symlink():  # a link is not even tried; nor is it followed if it comes after this
        try:
            file = open(path, "a", opener=_open_as_it_is)  # noqa: SIM115 - the caller closes it
        except OSError as error:
            if error.errno not in _NO_REGULAR_FILE:
                raise
        else:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file
            file.close()
    kind = "a link" if path.is_symlink() else "no regular file"
    raise RunError(f"{path} is {kind}, where Groundling keeps a lock file: delete it, or {otherwise}")


def _open_as_it_is(path: str, flags: int) -> int:
    """In a folder of another's: a file would be made wherever a link leads, and a pipe waited for without end."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither
    return os.open(path, flags, 0o666)


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock of this file; on file systems without locks, if the file exists."""
    if not path.is_file():  # a pipe, say, would be waited for without end
        return False
    no_locks: list[str] = []
    try:
        with path.open("r+b" if os.access(path, os.W_OK) else "rb") as file:
            return not lock_file(file, no_locks.append, attempts=1) or bool(no_locks)
    except FileNotFoundError:  # deleted meanwhile
        return False


def lock_beside(folder: Path) -> Path:
    """The lock's file of a folder that is not there before it is whole."""
    return folder.with_name(f".{folder.name}{LOCK}")


@contextmanager
def open_utf8(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file for reading, with or without a byte order mark; ``newline`` as of `open`.

    Raises:
        GroundlingError: what is read of it is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as lines:
            yield lines
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise GroundlingError(f"{path} is not UTF-8 (it has a byte {byte:#04x}): save it as UTF-8") from error


@contextmanager
def open_csv(path: Path, delimiter: str = ",") -> "Iterator[csv.DictReader[str]]":
    """Open a CSV file whose first line names the columns, values of any length; otherwise as `open_utf8`.

    Raises:
        GroundlingError: two columns have one name, or as `open_utf8`.
    """
    csv.field_size_limit(_LONGEST_VALUE)
    with open_utf8(path, newline="") as lines:
        rows = csv.DictReader(lines, delimiter=delimiter)
        check_columns(rows.fieldnames or (), path)
        yield rows


def check_columns(names: Sequence[str], where: object) -> None:
    """Raise `GroundlingError` if two columns have one name, since rows by name would drop the first one's values."""
    if doubled := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise GroundlingError(
            f"{where} has {names.count(doubled[0])} columns called {doubled[0]!r:.80}: give each column its own name"
        )


def harmless_cell(text: str) -> str:
    """A cell of a CSV file that no spreadsheet takes for a formula."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def lock_file(
    file: IO[Any],
    warn: Callable[[str], None],
    wait: bool = False,
    shared: bool = False,
    attempts: int = _ATTEMPTS,
) -> bool:
    """Lock an open file until it is closed or its process ends.

    Args:
        file: Open for writing, as some network file systems need it; for a shared lock, for reading.
        warn: Called if the file system has no locks: then no process is kept out.
        wait: Wait until no other process holds the lock.
        shared: Lock against exclusive locks only: any number of processes can hold it.
        attempts: How often to try: `is_locked` holds a free lock for an instant.

    Returns:
        Whether this process may go on; False if another one holds the lock.

    Raises:
        OSError: it can be neither had nor done without.
    """
    import fcntl

    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    for attempt in range(attempts):
        time.sleep(_SECONDS_BETWEEN if attempt else 0)
        try:
            fcntl.flock(file, operation)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warn(
                f"{Path(file.name).parent}: this file system has no locks; see to it that no two processes do the same "
                "work there at once"
            )
        return True
    return False
