"""A deterministic sample of `make fuzz`, and the harness itself."""

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


def test_an_input_that_is_slow_twice_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    seconds = iter([0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 6.0])  # began and ended, of each reading
    monkeypatch.setattr("tests.fuzz.harness.time.process_time", lambda: next(seconds))
    figures = Figures(Target("t", lambda random: "", lambda made, folder: seen.append(made), "", 1))
    for made in ("quick", "imports", "slow"):
        read(figures, made, tmp_path)
    assert seen == ["quick", "imports", "imports", "slow", "slow"]
    assert figures.slowest == 2.0
    (inputs,) = figures.findings.values()
    assert len(inputs) == 1 and "'slow'" in inputs[0] and "takes more than" in inputs[0]
