"""Settings of the demo as a file has them, and a secret in the environment that no file may read."""

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
    """As a run's file has them."""
    values: dict[str, Any] = yaml.safe_load(to_yaml(demo()))
    return values


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the environment's variables that are read."""
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
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
    assert SECRET not in captured.err + captured.out
    return captured.err
