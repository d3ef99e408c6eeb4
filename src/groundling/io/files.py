"""Atomic writes: a file or folder is complete or absent, whatever kills the process."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from groundling.errors import ConfigError

PARTIAL = ".partial"  # Part of the names of unfinished files and folders


def cache() -> Path:
    """Return the user's cache folder; everything in it can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "groundling"


def write_atomically(path: Path, text: str) -> None:
    """Write text to a file; on an error the earlier file stays as it was."""
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file next to ``path``, then rename it into place."""
    with _replacing(path) as partial:
        write(partial)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file of this process, which replaces ``path`` at the end of the block.

    It is locked while it is written: `locks.remove_partial_files` tells it from the leftovers of killed processes.
    """
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
    """Replace the files of one result so that ``mark`` never exists together with files of another result.

    The old ``mark`` and ``stale`` files are deleted, then the new files are renamed into place, ``mark`` last. A full
    disk leaves the earlier result; a kill one of the two, or no mark.
    """
    with ExitStack() as renames:  # unwinds in reverse order
        for path in sorted(texts, key=lambda path: path != mark):
            path.parent.mkdir(parents=True, exist_ok=True)
            renames.enter_context(_replacing(path)).write_text(texts[path], encoding="utf-8")
        for path in (mark, *stale):
            if path == mark or path not in texts:
                path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into, which is renamed to ``folder``, new or empty, at the end of the block."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: name a new folder")
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
    """Give ``path`` the permissions of ``other``; safetensors ignores the umask and writes for the owner alone."""
    path.chmod(other.stat().st_mode & 0o777)
