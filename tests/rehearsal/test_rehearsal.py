"""Rehearsal of an accelerator, in separate processes, because PyTorch's spare backend is named once per process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.thorough import THOROUGH

_ROOT = Path(__file__).resolve().parents[2]


def _process(module: str) -> subprocess.CompletedProcess[str]:
    here = {"PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", module],
        cwd=_ROOT,
        env=os.environ | here,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@THOROUGH
def test_paths_are_rehearsed_and_nothing_is_misplaced() -> None:
    done = _process("tests.rehearsal")
    wrong = [line for line in done.stdout.splitlines() if "WRONG" in line]
    assert done.returncode == 0, "\n".join(wrong) or done.stderr[-3000:]
    assert len(done.stdout.splitlines()) > 6, done.stdout
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"  # it is not part of this process
    assert "tests.rehearsal.device" not in sys.modules


@THOROUGH
def test_a_mistake_of_each_kind_is_found() -> None:
    done = _process("tests.rehearsal.planted")
    assert done.returncode == 0, done.stderr[-3000:]
    reports = {mistake: "\n".join(problems) for mistake, problems in json.loads(done.stdout).items()}
    assert "aten.index_add.default refused in lm/read/scoring.py:" in reports["mixed_devices"]
    assert "Expected all tensors to be on the same device" in reports["mixed_devices"]
    assert "aten.index_copy_.default refused in lm/write/steps.py:_Slots.update" in reports["mixed_and_swallowed"]
    # One for each token, and one check for finished texts.
    assert "to host, 25 times in 24 tokens: lm/write/decoding.py:Decoder._write" in reports["copied_in_a_loop"]
    assert "numpy refused in policies/policy.py:Action.choose" in reports["taken_to_numpy"]
