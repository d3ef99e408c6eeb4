"""Writing files so that they are whole or as they were, and keeping other processes off them."""

import errno
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

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
