"""The demo's settings as stored in a file, and a secret in the environment that files must not read."""

import functools
import os
from typing import Any

import pytest
import yaml

from groundling.cli.main import main
from groundling.config import Config
from groundling.config.compose import compose, to_yaml

SECRET = "swordfish-in-the-environment"
TRUST = "model.trust_remote_code=true"


@functools.cache
def demo() -> Config:
    return compose("demo-easy")


def demo_values() -> dict[str, Any]:
    """Return the demo's settings as stored in a run's file."""
    values: dict[str, Any] = yaml.safe_load(to_yaml(demo()))
    return values


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the environment variables that are read."""
    monkeypatch.setenv("GROUNDLING_SECRET", SECRET)
    names: list[str] = []
    kept: Any = type(os.environ).__getitem__

    def read(environ: Any, name: str) -> str:
        names.append(name)
        value: str = kept(environ, name)
        return value

    monkeypatch.setattr(type(os.environ), "__getitem__", read)
    return names


def refusal(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return the one-line error of a command that is refused."""
    capsys.readouterr()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
    assert SECRET not in captured.err + captured.out
    return captured.err
