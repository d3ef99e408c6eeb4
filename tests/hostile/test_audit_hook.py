"""The audit records hostile actions, and the files of `test_audit` would cause them in careless parsers."""

import ctypes
import http.client
import importlib
import marshal
import os
import pickle
import runpy
import shutil
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import jinja2
import pytest
import torch
import transformers

from tests.config.conftest import SECRET
from tests.config.test_trust import hostile_model, keep_modules_in
from tests.hostile.audit import auditing
from tests.hostile.plants import JINJA, SERVER, Bomb, Plant, module, pickled


def _import_from(folder: Path) -> None:
    module("mine")(folder)
    runpy.run_path(str(folder / "mine.py"))


def _link(folder: Path, outside: Path) -> None:
    (folder / "link").symlink_to(outside / "file")
    (folder / "link").write_text("theirs")


ACTS: list[tuple[str, Callable[[Path, Path], Any]]] = [
    ("os.system", lambda folder, outside: os.system("true")),
    ("subprocess.Popen", lambda folder, outside: subprocess.run(["true"], check=True)),
    ("os.exec", lambda folder, outside: os.execv(str(outside / "none"), ["none"])),
    ("webbrowser.open", lambda folder, outside: webbrowser.BackgroundBrowser("true").open(SERVER)),
    ("socket.connect", lambda folder, outside: socket.create_connection(("127.0.0.1", 9))),
    ("socket.getaddrinfo", lambda folder, outside: socket.getaddrinfo("127.0.0.1", 9)),
    ("socket.bind", lambda folder, outside: socket.create_server(("127.0.0.1", 0)).close()),
    ("urllib.Request", lambda folder, outside: urllib.request.urlopen(SERVER)),
    ("http.client.connect", lambda folder, outside: http.client.HTTPConnection("127.0.0.1", 9).connect()),
    ("pickle.find_class", lambda folder, outside: pickle.loads(pickle.dumps(Bomb()))),
    ("marshal.loads", lambda folder, outside: marshal.loads(marshal.dumps(1))),
    ("import", lambda folder, outside: importlib.import_module("hostile_nowhere")),
    ("compile", lambda folder, outside: _import_from(folder)),
    ("exec", lambda folder, outside: _import_from(folder)),
    ("ctypes.dlopen", lambda folder, outside: ctypes.CDLL(str(folder / "lib.so"))),
    ("open", lambda folder, outside: (outside / "new").write_text("theirs")),
    ("open", _link),
    ("os.rename", lambda folder, outside: (outside / "file").rename(folder / "file")),
    ("os.remove", lambda folder, outside: (outside / "file").unlink()),
    ("os.mkdir", lambda folder, outside: (outside / "new").mkdir()),
    ("os.symlink", lambda folder, outside: (outside / "new").symlink_to(folder)),
    ("os.link", lambda folder, outside: (folder / "new").hardlink_to(outside / "file")),
    ("shutil.rmtree", lambda folder, outside: shutil.rmtree(outside)),
]


@pytest.mark.parametrize(("event", "act"), ACTS, ids=[event for event, _ in ACTS])
def test_the_audit_records_hostile_actions(
    event: str, act: Callable[[Path, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outside = tmp_path / "received", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "file").write_text("mine")
    with auditing(folder, monkeypatch) as audit, suppress(OSError, ImportError):
        act(folder, outside)
    assert event in dict(audit.acts)


def test_the_audit_ignores_harmless_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "received"
    with auditing(folder, monkeypatch) as audit:
        folder.mkdir()
        (folder / "a").write_text(Path(__file__).read_text())
        (folder / "a").rename(folder / "b")
        shutil.rmtree(folder)
        importlib.reload(importlib.import_module("colorsys"))
    os.system("true")  # after the audit
    assert audit.acts == [] and audit.asked == []
    monkeypatch.setenv("GROUNDLING_SECRET", SECRET)
    for read in (lambda: os.getenv("GROUNDLING_SECRET"), os.environ.copy, lambda: list(os.environ.items())):
        with auditing(tmp_path, monkeypatch) as audit:
            read()
        assert "GROUNDLING_SECRET" in audit.asked


CARELESS: dict[str, tuple[Plant, Callable[[Path], Any], str]] = {
    "a pickle for weights": (
        pickled("weights.bin"),
        lambda root: torch.load(root / "weights.bin", weights_only=False),
        "os.system",
    ),
    "a chat template": (lambda root: None, lambda root: jinja2.Template(JINJA).render(), "os.system"),
    "an env's id": (module("hostile_env"), lambda root: gymnasium.make("hostile_env:Env-v0"), "import"),
    "a model's Python": (
        lambda root: hostile_model(root / "python", root / "it-ran"),
        lambda root: transformers.AutoConfig.from_pretrained(root / "python", trust_remote_code=True),
        "exec",
    ),
}
"""Parsers that run planted code, and the event that the audit records."""


@pytest.mark.parametrize("name", CARELESS)
def test_planted_code_would_run_in_careless_readers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, read, event = CARELESS[name]
    plant(tmp_path)
    keep_modules_in(tmp_path / "modules", monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = dict(sys.modules)
    with auditing(tmp_path, monkeypatch) as audit, suppress(gymnasium.error.Error):
        read(tmp_path)
    for added in sys.modules.keys() - kept.keys():
        if added.startswith("hostile"):
            del sys.modules[added]
    assert event in dict(audit.acts)
