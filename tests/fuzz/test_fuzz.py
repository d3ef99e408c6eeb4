"""A deterministic sample of `make fuzz`, and tests of the harness itself."""

from pathlib import Path

import pytest

from groundling.errors import GroundlingError
from tests.fuzz.__main__ import targets
from tests.fuzz.harness import Figures, Target, fuzz, read

TARGETS = targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_malformed_inputs_are_read_or_refused(target: Target, tmp_path: Path) -> None:
    inputs = max(10, target.inputs // 800)
    figures = fuzz(target, tmp_path, inputs, "suite")
    assert figures.inputs == inputs
    assert not figures.findings, "\n".join(one for kind in figures.findings.values() for one in kind)


def test_failures_are_findings(tmp_path: Path) -> None:
    def check(made: str, folder: Path) -> None:
        if made == "refused":
            raise GroundlingError("mend it")
        assert made == "good"

    figures = Figures(Target("t", lambda random: "", check, "", 1))
    for made in ("good", "refused", "bad", "bad"):
        read(figures, made, tmp_path)
    assert (figures.inputs, figures.refused) == (4, 1)
    assert [len(inputs) for inputs in figures.findings.values()] == [2]
    assert "AssertionError in test_fuzz.py" in next(iter(figures.findings))
