"""Record the actions of a process that a hostile file could cause, with an audit hook (PEP 578)."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from transformers.utils import logging as transformers_logging

HOSTILE = "hostile"
"""Prefix of modules that must not be imported because of a file."""
_STARTED = ("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn")
_STARTED += ("subprocess.Popen", "webbrowser.open", "cpython.run_command", "cpython.run_file")
_SENT = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")
_SENT += ("urllib.Request", "http.client.connect", "ftplib.connect", "smtplib.connect")
_CHANGED = {"os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.chmod": (0,)}
_CHANGED |= {"os.chown": (0,), "os.truncate": (0,), "os.symlink": (1,), "os.link": (0, 1), "shutil.rmtree": (0,)}
"""Events that change files, with the positions of the changed paths in their arguments."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = (Path(matplotlib.get_cachedir()), Path("/dev"), Path(default_cache_dir()))


@dataclass
class Audit:
    """Recorded actions: events and their objects."""

    folder: Path
    """The folder of the received files, the only one that may be written."""
    acts: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Names of environment variables, once for each access."""


_on: Audit | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if (audit := _on) is None or audit.folder is None:
        return
    if (what := _act(event, arguments, audit.folder)) is not None:
        audit.acts.append((event, what))


def _act(event: str, arguments: tuple[Any, ...], folder: Path) -> str | None:
    """Return the object of a forbidden action, or None."""
    if event in _STARTED or event in _SENT:
        return repr(arguments)[:200]
    if event == "pickle.find_class":  # PyTorch's reader of weights does not get here
        return ".".join(arguments)
    if event == "marshal.loads":
        return None if _importing() else "bytes"
    if event in ("exec", "compile", "ctypes.dlopen"):
        name = getattr(arguments[0], "co_filename", None) if event == "exec" else arguments[event == "compile"]
        return name if isinstance(name, str) and name[:1] != "<" and _is_in(name, folder) else None
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        writes = isinstance(arguments[2], int) and arguments[2] & _WRITING
        return _elsewhere([arguments[0]], folder, follow=True) if writes else None
    if event in _CHANGED and not (event in ("os.remove", "os.rmdir") and arguments[1] != -1):  # inside rmtree
        return _elsewhere([arguments[place] for place in _CHANGED[event]], folder)
    return None


def _importing() -> bool:
    """Return True if the import system reads bytecode."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and "importlib" in frame.f_code.co_filename


def _reads_all() -> bool:
    """Return True if a library reads all variables (tqdm to find its own, a mock of `datasets` to restore them)."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in ("<frozen os>", "<frozen _collections_abc>"):
        frame = frame.f_back
    return frame is not None and bool(re.search(r"tqdm|unittest.mock", frame.f_code.co_filename))


def _is_in(path: str, folder: Path, follow: bool = True) -> bool:
    return Path(os.path.realpath(path) if follow else path).is_relative_to(folder)


def _elsewhere(paths: list[Any], folder: Path, follow: bool = False) -> str | None:
    """Return the first path outside the folder and the caches; with ``follow``, also resolve a link at its end."""
    for path in map(os.fsdecode, paths):
        place = path if follow else str(Path(os.path.realpath(Path(path).parent)) / Path(path).name)
        if "__pycache__" not in path and not any(_is_in(place, allowed, follow) for allowed in (folder, *_CACHES)):
            return path
    return None


class _Finder:
    """An import hook that records hostile modules, because imports have no event that covers all of them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if _on is not None and name.rpartition(".")[2].startswith(HOSTILE):
            _on.acts.append(("import", name))


sys.meta_path.insert(0, _Finder)
sys.addaudithook(_hook)  # cannot be removed, but has no effect unless `auditing`


@contextmanager
def auditing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Audit]:
    """Record the actions of the block."""
    global _on
    audit = Audit(folder.resolve())
    kept: Any = type(os.environ).__getitem__

    def read(environ: Any, name: str) -> str:
        if not _reads_all():
            audit.asked.append(name)
        value: str = kept(environ, name)
        return value

    with monkeypatch.context() as patch:
        patch.setattr(type(os.environ), "__getitem__", read)
        transformers_logging.set_verbosity_warning()  # as in a new process
        for logger in (logging.getLogger(name) for name in list(logging.root.manager.loggerDict)):
            for handler in logger.handlers:  # these handlers keep an earlier standard error
                if type(handler) is logging.StreamHandler:
                    patch.setattr(handler, "stream", sys.stderr)
        _on = audit
        try:
            yield audit
        finally:
            _on = None
