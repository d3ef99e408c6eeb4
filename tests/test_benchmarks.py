"""Benchmarks that train: their settings are tested here, but their results are produced outside the tests."""

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
