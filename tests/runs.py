"""Parts of runs that tests compare."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groundling.cli.main import main
from groundling.training import checkpoint
from groundling.training.tracking import read_metrics

TIME_KEYS = ("seconds", "steps_per_second")
"""Metrics that differ between two runs with the same seed."""


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of ``metrics.jsonl`` without times."""
    return [{name: value for name, value in row.items() if name not in TIME_KEYS} for row in read_metrics(run_dir)]


def tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the last checkpoint, by file and name."""
    last = checkpoint.list_checkpoints(run_dir / "checkpoints")[-1]
    return {f"{p.name}:{name}": t for p in sorted(last.glob("*.safetensors")) for name, t in load_file(p).items()}


def assert_equal_runs(one: Path, other: Path) -> None:
    """Assert that two runs have the same figures and last checkpoints."""
    assert figures(one) == figures(other)
    expected, found = tensors(one), tensors(other)
    assert expected.keys() == found.keys()
    assert not [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]


def error_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail with a single line, and return this line."""
    capsys.readouterr()
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error
