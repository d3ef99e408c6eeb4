"""Writing files so that they are whole or as they were, locking them, and reading those that come from elsewhere."""

import csv
import errno
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from groundling.errors import GroundlingError

_LONGEST_VALUE = 2**31 - 1
"""Characters of a value of a CSV file; the csv module's own limit is 131,072, and documents are longer."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems without locks say: some of NFS, Lustre as it is often mounted."""


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place; on an error ``path`` stays as it was."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside ``path`` and rename it into place.

    Several processes and machines may do so at once: each writes a file of its own, and the last one stays.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        write(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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
    """Open a CSV file whose first line names the columns, values of any length; otherwise as `open_utf8`."""
    csv.field_size_limit(_LONGEST_VALUE)
    with open_utf8(path, newline="") as lines:
        yield csv.DictReader(lines, delimiter=delimiter)


def lock_file(file: IO[Any], warn: Callable[[str], None], wait: bool = False) -> bool:
    """Lock an open file until it is closed or its process ends.

    Args:
        file: Open for writing, as some network file systems need it.
        warn: Told if the file system has no locks: then no process is kept off.
        wait: Until no other process holds the lock.

    Returns:
        Whether this process may go on; False if another one holds the lock.

    Raises:
        OSError: it can be neither had nor done without.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warn(
            f"{Path(file.name).parent}: this file system has no locks; see to it that no two processes do the same "
            "work there at once"
        )
    return True
