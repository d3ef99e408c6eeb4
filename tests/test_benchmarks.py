"""Benchmarks that train: their settings are checked here, their figures are made outside the suite."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import main
from tests.thorough import thorough

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("agent", ["drrn", *thorough("symbolic")])
def test_the_baselines_can_be_trained(agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agents = _load("baselines").AGENTS
    assert list(agents) == ["symbolic", "drrn"]
    status = main(["train", *agents[agent], f"run_dir={tmp_path / 'run'}", "--dry-run"])
    assert status == 0, capsys.readouterr().err


def test_baselines_that_cannot_be_trained_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines = _load("baselines")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(baselines, "AGENTS", {"symbolic": ["glam/symbolic", "world.history=1"]})
    assert baselines.run() == 1
    assert "world.history=1 does nothing" in capsys.readouterr().err
