"""`groundling evaluate --suite controls` in any text env, and its verdict."""

import csv
import json
from pathlib import Path

import pytest

import tests.envs.test_controls  # noqa: F401  (registers envs)
from groundling.cli.main import main
from groundling.envs.controls import CONTROLS
from groundling.errors import RunError
from groundling.evaluation.controls import ControlResults, read_controls
from groundling.worlds.episode import Episode, Played
from tests.envs import doors  # noqa: F401  (registers test/Doors-v0)


def _evaluate(tmp_path: Path, env: str, *words: str) -> int:
    common = ["random", f"world.env={env}", "~world.args", f"run_dir={tmp_path}", "--episodes", "6"]
    return main(["evaluate", *common, *words])


def test_the_group_is_compared_with_the_original(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _evaluate(tmp_path, "test/Doors-v0", "--suite", "controls") == 0
    shown = capsys.readouterr().out
    assert "Does the agent read its goal?" in shown
    assert "no evidence that the agent reads its goal: under swapped, success falls by only 0.000" in shown
    assert {path.stem for path in (tmp_path / "evaluation").glob("*.json")} == {"held-out", *CONTROLS}
    rows = [line.split() for line in shown.rpartition("Does the agent")[2].splitlines()]
    assert [row[0] for row in rows if row and row[0] in {"original", *CONTROLS}] == ["original", *CONTROLS]


def test_a_function_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def other(goal, observation, info):\n    return 'open the window'\nwrong = 3\n")
    run = tmp_path / "run"
    assert _evaluate(run, "test/Doors-v0", "--suite", "swapped", "--other-goal", f"{file}:other") == 0
    content = json.loads((run / "evaluation" / "swapped.json").read_text())
    assert content["world"]["args"] == {"control": "swapped", "other_goal": f"{file}:other"}
    assert "open the window" in (run / "evaluation" / "swapped.csv").read_text()
    for words, message in (
        (["--suite", "dropped", "--other-goal", f"{file}:other"], "has no effect without the swapped suite"),
        (["--suite", "swapped", "--other-goal", f"{file}:nothing"], "has no attribute 'nothing': expected FILE.py:F"),
        (["--suite", "swapped", "--other-goal", f"{file}:wrong"], "must be a function of goal, observation and info"),
        (["--suite", "swapped", "--other-goal", "mine"], "expected FILE.py:FUNCTION"),
    ):
        assert _evaluate(run, "test/Doors-v0", *words) == 1
        assert message in capsys.readouterr().err


def test_an_env_without_a_goal_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _evaluate(tmp_path, "test/Silent-v0", "--suite", "controls") == 1
    warning, error = capsys.readouterr().err.strip().split("\n")
    assert warning.startswith(
        "warning: suites swapped, dropped, scrambled, corrupted do not apply to this run: it has no goal"
    )
    assert "contains no suite that applies" in error


def _played(successes: str, shown: str = "") -> Played:
    figures = [{"success": float(one)} for one in successes]
    for row, one in zip(figures, shown, strict=False):
        row["shown_success"] = float(one)
    return Played([Episode(one, number) for number, one in enumerate(figures)])


@pytest.mark.parametrize(
    ("original", "swapped", "random", "verdict"),
    [
        ("1" * 40, "0" * 40, "0001" * 10, "the agent reads its goal: under swapped, success falls by 1.000"),
        ("1" * 40, "01" * 20, "0001" * 10, "reads its goal only in part: under swapped, success falls by 0.500"),
        (
            "1" * 40,
            "1" * 40,
            "0001" * 10,
            "no evidence that the agent reads its goal: under swapped, success falls by",
        ),
        ("01" * 20, "0" * 40, "10" * 20, "does not succeed more often than random play"),
    ],
)
def test_verdict(original: str, swapped: str, random: str, verdict: str) -> None:
    played = {
        "held-out": {"trained": _played(original), "random": _played(random)},
        "swapped": {"trained": _played(swapped), "random": _played(random)},
    }
    results = ControlResults("trained", played)
    assert verdict in results.verdict
    assert results.differences["swapped"].episodes == 40


def test_without_pairs_or_random_play(capsys: pytest.CaptureFixture[str]) -> None:
    played = {"held-out": {"trained": _played("11")}, "dropped": {"trained": _played("00", "10")}}
    ControlResults("trained", played).print()
    shown = capsys.readouterr().out
    assert "dropped, goal shown" in shown and "the agent reads its goal: under dropped" in shown
    assert "nothing to compare" in ControlResults("trained", {"held-out": played["held-out"]}).verdict


def test_a_control_without_pairs_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    other = Played([Episode({"success": 0.0}, 7)])
    ControlResults("trained", {"held-out": {"trained": _played("11")}, "swapped": {"trained": other}}).print()
    shown = capsys.readouterr().out
    assert shown.count("original  ") == 1 and "swapped  " in shown


@pytest.mark.parametrize("row", ["trained,x,1", "trained"])
def test_corrupt_results(row: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "swapped.csv").write_text(f"agent,episode,success\n{row}\n")
    with pytest.raises(RunError, match=r"swapped.csv cannot be read .*run `groundling evaluate` again"):
        read_controls(tmp_path, "", "trained", ["swapped"])


def test_the_example(tmp_path: Path) -> None:
    words = [
        "--import",
        "examples.shelf",
        "--suite",
        "swapped",
        "--other-goal",
        "examples/other_goal.py:visible_thing",
    ]
    assert _evaluate(tmp_path, "Shelf-v0", *words) == 0
    rows = list(csv.DictReader((tmp_path / "evaluation" / "swapped.csv").open(newline="")))
    assert len(rows) == 6 and all(row["mission"].startswith("take the ") for row in rows)
