"""`groundling study`, as a user calls it: whole, interrupted, in several processes, and told wrong things."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from groundling.cli.main import INTERRUPTED, main
from groundling.config.compose import compose
from groundling.envs.seeds import SCHEME
from groundling.errors import RunError
from groundling.evaluation.evaluate import evaluate
from groundling.evaluation.tables import as_code, in_markdown, markdown_table, write_csv
from groundling.intervals import IntervalEstimate, wilson_interval
from groundling.reports import plots
from groundling.runtime import parallel as beside
from groundling.studies import run as study_module
from groundling.studies.arms import SHARED, changes, differences, shared_suites, successes
from groundling.studies.definition import read_study, studies
from groundling.studies.figures_page import write_study_by_figures
from groundling.studies.results import Score
from groundling.studies.run import make_jobs, run_jobs_beside
from groundling.training.tracking import read_metrics
from groundling.worlds.writing import WritingWorld
from tests.thorough import THOROUGH, one_in

_STUDY = """
# A tiny study.
name: tiny
seeds: [1, 2]
suites: [held-out, other-nouns]
episodes: 4
reference: quick
common:
  - world.env=test/Corridor-v0
  - ~world.args
  - world.actions=[left, right, wait]
  - world.num_envs=4
  - training.steps=64
  - world.num_steps=8
  - evaluation.baselines=[]
  - evaluation.num_envs=2
  - device=cpu
arms:
  quick:
    about: learns fast
    experiment: demo-easy
    overrides: &table ["~policy.args", policy.id=test-table, "evaluation.baselines=[zero-shot]"]
  slow:
    experiment: demo-easy
    overrides: ["~policy.args", policy.id=test-table, algorithm.args.learning_rate=1e-5]
  random:
    experiment: random
"""
_WRITING = """
name: writers
title: Two writers
note: Of few texts.
seeds: [1]
suites: [test]
episodes: 3
common: [training.steps=40, world.num_texts=4, world.num_tokens=6, "evaluation.baselines=[]", device=cpu]
arms:
  measured: {experiment: rl4lms/increasing_numbers_reinforce_pp}
  plain: {experiment: rl4lms/increasing_numbers_reinforce_pp, overrides: ["evaluation.metrics=[]"]}
"""
_FILES = ["README.md", "arms", "curves.csv", "evaluations.csv", "summary.csv", "summary.json"]
_FIGURES = ["generalisation.png", "generalisation.svg", "success.png", "success.svg"]


@pytest.fixture(autouse=True)
def _blank_pictures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A study saves four pictures, which takes seconds; tests that look at them ask for `all_figures`."""

    def save(figure: Any, path: Path) -> None:
        for suffix in (".svg", ".png"):
            path.with_suffix(suffix).touch()

    if "all_figures" not in request.fixturenames:
        monkeypatch.setattr(plots, "save", save)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(_STUDY)
    return path


def _words(study: Path, *more: str) -> list[str]:
    folder = study.parent
    return ["study", str(study), *more, "--runs", str(folder / "runs"), "--output", str(folder / "out")]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_both_agents_meet_the_same_numbers_of_distractors() -> None:
    study, arms = read_study("glam-distractors")
    configs = {name: compose(arm.experiment, [*study.common, *arm.overrides]) for name, arm in arms.items()}
    combinations = {(c.policy.id, c.world.args["num_dists"]) for c in configs.values()}
    assert combinations == {(policy, n) for policy in ("action_scoring", "symbolic") for n in (4, 8, 12)}
    assert all(name.endswith(f"-{c.world.args['num_dists']}") for name, c in configs.items())


def test_the_study_of_sizes_differs_in_the_model_alone() -> None:
    study, arms = read_study(
        "glam-size", ["arms.small.model.path=starter", "arms.xl.model.path=starter-causal"]
    )
    configs = {name: compose(arm.experiment, [*study.common, *arm.overrides]) for name, arm in arms.items()}
    paths = {name: c.model.path for name, c in configs.items()}
    assert paths == {"small": "starter", "large": "google/flan-t5-large", "xl": "starter-causal"}
    assert len({(c.world.env, c.training.steps, c.algorithm.id) for c in configs.values()}) == 1


def test_an_interrupted_study_goes_on_without_doing_anything_twice(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: Counter[tuple[str, str]] = Counter()

    def counted(target: Any, suite: str, *args: Any, **kwargs: Any) -> Any:
        if len(played) == 3:
            raise KeyboardInterrupt
        results = evaluate(target, suite, *args, **kwargs)
        played[target.run_dir.name, suite] += 1
        return results

    monkeypatch.setattr(study_module, "evaluate", counted)
    assert main(_words(study)) == INTERRUPTED
    runs, out = study.parent / "runs", study.parent / "out"
    assert not out.exists()
    first = (runs / "quick-seed1" / "metrics.jsonl").read_bytes()
    assert (runs / "quick-seed2").exists() and not (runs / "slow-seed2").exists()

    monkeypatch.setattr(study_module, "evaluate", evaluate)
    assert main(_words(study)) == 0
    output = capsys.readouterr().out
    assert "[1/6] quick-seed1: evaluating" in output and "[5/6] slow-seed2: training" in output
    assert "[6/6] random-seed2" in output and "without the tests other-nouns" in output
    assert (runs / "quick-seed1" / "metrics.jsonl").read_bytes() == first
    assert sorted(path.name for path in out.iterdir()) == sorted(_FILES + _FIGURES)

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("done again")

    for name in ("evaluate", "train"):
        monkeypatch.setattr(study_module, name, never)
    before = {path: path.read_bytes() for path in out.rglob("*.*") if path.suffix != ".png"}
    assert main(_words(study)) == 0
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.usefixtures("all_figures")
def test_the_results_are_those_of_the_runs(study: Path) -> None:
    assert main(_words(study)) == 0
    runs, out = study.parent / "runs", study.parent / "out"
    assert len(_rows(out / "curves.csv")) == 2 * 2 * 2
    scores = {(r["arm"], r["seed"], r["agent"], r["task"]): r for r in _rows(out / "evaluations.csv")}
    held_out = json.loads((runs / "quick-seed2" / "evaluation" / "held-out.json").read_text())
    for agent in ("trained", "zero-shot"):
        success = held_out["agents"][agent]["figures"]["success"]["value"]
        assert float(scores["quick", "2", agent, "all"]["success"]) == pytest.approx(success)
    slow = [float(scores["slow", seed, "trained", "all"]["success"]) for seed in "12"]
    summary = {(r["arm"], r["measure"], r["agent"]): r for r in _rows(out / "summary.csv") if r["suite"]}
    summary |= {
        (r["arm"], "area", r["agent"]): r for r in _rows(out / "summary.csv") if r["measure"] == "area"
    }
    line = summary["slow", "success", "trained"]
    assert line["seeds"] == "2" and float(line["value"]) == pytest.approx(sum(slow) / 2)
    assert (float(line["low"]), float(line["high"])) == (min(slow), max(slow))
    assert 0 <= float(summary["quick", "area", "trained"]["value"]) <= 1
    quick = [float(scores["quick", seed, "trained", "all"]["success"]) for seed in "12"]
    differences = [one - other for one, other in zip(slow, quick, strict=True)]
    line = summary["slow", "difference", "trained"]
    assert float(line["value"]) == pytest.approx(sum(differences) / 2)
    ends = float(line["low"]), float(line["high"])
    assert ends == (pytest.approx(min(differences)), pytest.approx(max(differences)))
    assert ("quick", "difference", "trained") not in summary
    (area,) = [r for r in _rows(out / "summary.csv") if r["measure"] == "difference" and not r["suite"]]
    both = [float(summary[arm, "area", "trained"]["value"]) for arm in ("slow", "quick")]
    assert area["arm"] == "slow" and float(area["value"]) == pytest.approx(both[0] - both[1], abs=1e-5)
    assert ("random", "area", "random") not in summary
    page = (out / "README.md").read_text()
    difference = IntervalEstimate(sum(differences) / 2, min(differences), max(differences)).text("+.3f")
    differs = (min(differences) > 0 or max(differences) < 0) and min(differences) < max(differences)
    cell = f"**{difference}**" if differs else difference
    assert "## Differences from quick\n" in page and f"| held-out | {cell} |" in page
    assert "random" in (out / "success.svg").read_text()  # a line beside the curves
    assert "groundling study" in page and "| quick | learns fast |" in page and "Unfinished" not in page
    each = [IntervalEstimate(share, *wilson_interval(round(4 * share), 4)) for share in slow]
    together = IntervalEstimate(sum(slow) / 2, *wilson_interval(round(4 * sum(slow)), 8))
    assert "| slow | " + " | ".join(one.text(".3f") for one in [*each, together]) + " |" in page
    assert len(json.loads((out / "summary.json").read_text())["figures"]) == len(_rows(out / "summary.csv"))

    # A test that suits nobody leaves the area under the curve.
    assert main(_words(study, "suites=other-nouns", "seeds=1", "arms=quick")) == 0
    page = (out / "README.md").read_text()
    assert (
        re.search(r"\| quick \| learns fast \| [\d.]+ \|  \|  \|", page) and "## Without training" not in page
    )

    # More episodes are other evaluations; a longer training goes on and is evaluated again.
    assert main(_words(study, "episodes=6", "seeds=1", "arms=quick", "training.steps=96")) == 0
    again = json.loads((runs / "quick-seed1" / "evaluation" / "held-out.json").read_text())
    assert again["agents"]["trained"]["episodes"] == 6 and again["checkpoint"] == "000003"


def test_an_evaluation_that_was_made_otherwise_is_made_again(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = _words(study, "seeds=1", "arms=quick", "suites=held-out")
    assert main(words) == 0
    run = study.parent / "runs" / "quick-seed1"
    path = run / "evaluation" / "held-out.json"
    first = path.read_bytes()
    changed = ["evaluation.deterministic=true", "evaluation.episodes=4"]
    assert main(["evaluate", str(run), *changed]) == 0 and path.read_bytes() != first
    assert main(["report", str(run)]) == 0
    assert "but with evaluation.deterministic=true" in (run / "report.html").read_text()
    assert main(words) == 0 and path.read_bytes() == first
    before = json.loads(first)  # of a version that did not tell how
    path.write_text(json.dumps({k: v for k, v in before.items() if k not in ("overrides", "played_with")}))
    assert main(["report", str(run)]) == 0 and "but with" not in (run / "report.html").read_text()
    assert main(words) == 0 and path.read_bytes() == first


def test_a_shorter_study_needs_runs_of_its_own(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words(study, "seeds=1", "arms=quick", "suites=held-out")) == 0
    assert main(_words(study, "seeds=1", "arms=quick", "suites=held-out", "training.steps=32")) != 0
    assert "longer than training.steps=32" in capsys.readouterr().out


def test_a_baseline_that_cannot_play_is_left_out_and_nothing_is_played_twice(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["seeds=1", "arms=quick", "suites=held-out", "evaluation.baselines=[zero-shot,random,expert]"]
    study.write_text(_STUDY.replace(', "evaluation.baselines=[zero-shot]"', ""))
    assert main(_words(study, *few)) == 0
    assert "expert is left out" in capsys.readouterr().err
    rows = _rows(study.parent / "out" / "evaluations.csv")
    assert {row["agent"] for row in rows} == {"trained", "zero-shot", "random"}
    assert "Unfinished" not in (study.parent / "out" / "README.md").read_text()
    path = study.parent / "runs" / "quick-seed1" / "evaluation" / "held-out.json"
    assert "the expert is BabyAI's bot" in json.loads(path.read_text())["left_out"]["expert"]
    monkeypatch.setattr(study_module, "evaluate", None)
    assert main(_words(study, *few)) == 0
    assert main(["report", str(study.parent / "runs" / "quick-seed1")]) == 0
    assert "expert is left out: " in (study.parent / "runs" / "quick-seed1" / "report.html").read_text()


def _score(arm: str, seed: int, suite: str, success: float, agent: str = "trained") -> Score:
    return Score(arm, seed, agent, suite, "all", 10, success, 0.0, 1.0, None, None, None, None)


def test_a_difference_in_one_test_of_several_is_not_cut_off() -> None:
    suites = ["a", "b", "c", "d"]
    plain = [_score("plain", seed, suite, 0.2) for seed in range(5) for suite in suites]
    better = [
        _score("better", seed, suite, 0.8 if suite == "c" else 0.2) for seed in range(5) for suite in suites
    ]
    lines = {line.suite: line.estimate.value for line in differences([*plain, *better], "plain", suites)}
    assert lines == pytest.approx({"a": 0, "b": 0, "c": 0.6, "d": 0, SHARED: 0.15})


def test_a_test_in_which_an_agent_fails_counts_as_much_as_the_others() -> None:
    by_suite = {"a": 0.9, "b": 0.9, "c": 0.1, "d": 0.9, "control": 0.0}
    scores = [_score("one", seed, suite, value) for seed in range(5) for suite, value in by_suite.items()]
    shared = shared_suites(scores, ["control"], ())
    lines = {line.suite: line.estimate.value for line in successes(scores, shared)}
    assert lines == pytest.approx({**by_suite, SHARED: 0.7})


def test_an_arm_with_tests_of_its_own_does_not_say_which_are_taken_together() -> None:
    scores = [_score(arm, 1, suite, 0.5) for arm in ("one", "other") for suite in ("a", "b")]
    scores += [
        _score("costly", 1, "a", 0.4),
        _score("one", 1, "c", 0.1),
        _score("bot", 1, "c", 1.0, "expert"),
    ]
    assert shared_suites(scores, (), ["costly"]) == ["a", "b"]
    assert shared_suites(scores, (), ()) == ["a"]
    assert shared_suites(scores, (), ["costly", "one", "other"]) == ["a"]
    lines = {(line.arm, line.suite) for line in successes(scores, ["a", "b"])}
    assert ("other", SHARED) in lines and ("costly", SHARED) not in lines


def test_a_change_is_that_of_the_same_agent() -> None:
    usual = [_score("one", seed, "held-out", 0.5 + seed / 10) for seed in range(3)]
    other = [
        _score("one", seed, "french", 0.2 + seed / 10) for seed in (0, 2, 3)
    ]  # seed 3 lacks the usual one
    before = [
        _score("one", seed, suite, 0.1, "zero-shot") for seed in range(3) for suite in ("held-out", "french")
    ]
    (line,) = changes([*usual, *other, *before, _score("two", 0, "french", 0.3)], "held-out")
    assert (line.arm, line.suite, line.seeds) == ("one", "french", 2)
    assert [line.estimate.value, line.estimate.low, line.estimate.high] == pytest.approx([-0.3] * 3)


def test_a_costly_arm_has_fewer_seeds(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _STUDY.replace("  slow:\n", "  slow:\n    seeds: [2]\n")
    study.write_text(text)
    spec, arms = read_study(str(study))
    names = [job.name for job in make_jobs(spec, arms, study.parent / "runs")]
    assert names == ["quick-seed1", "random-seed1", "quick-seed2", "slow-seed2", "random-seed2"]
    assert main(_words(study, "arms=slow", "seeds=1")) != 0
    assert "slow have none of the seeds [1]" in capsys.readouterr().err
    study.write_text(text.replace("seeds: [2]", "seeds: [2, 7]"))
    assert main(_words(study)) != 0
    assert "arms.slow.seeds: [7] are not among the study's seeds, [1, 2]" in capsys.readouterr().err


@THOROUGH
def test_results_of_another_machine_are_taken_over(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here, whole = (study.parent / name for name in ("there", "here", "whole"))
    for folder, words in ((there, ["seeds=1"]), (whole, [])):
        assert main(["study", str(study), *words, "--runs", f"{folder}-runs", "--output", str(folder)]) == 0
    trained = []
    train = study_module.train
    monkeypatch.setattr(study_module, "train", lambda c, *a: (trained.append(c.run_dir), train(c, *a))[1])
    words = ["study", str(study), "--runs", f"{here}-runs", "--output", str(here), "--add", str(there)]
    assert main(words) == 0
    assert "3 of 6 runs are taken over" in capsys.readouterr().out
    assert trained == [f"{here}-runs/quick-seed2", f"{here}-runs/slow-seed2"]
    for name in ("curves.csv", "evaluations.csv", "summary.csv"):
        ours, theirs = _rows(here / name), _rows(whole / name)
        assert len(ours) == len(theirs) > 0
        for row, other in zip(sorted(ours, key=str), sorted(theirs, key=str), strict=True):
            row.pop("seconds", None), other.pop("seconds", None)
            assert row.keys() == other.keys()
            for column, cell in row.items():
                same = cell == other[column] or float(cell) == pytest.approx(float(other[column]), abs=2e-6)
                assert same, (name, column, cell, other[column])
    page = (here / "README.md").read_text()
    assert "--add there" in page and "Unfinished" not in page
    assert (here / "arms" / "slow.yaml").is_file()

    assert main([*words, "--add", str(whole)]) != 0
    assert (
        "whole has quick-seed1, random-seed1, slow-seed1, as another folder of --add"
        in capsys.readouterr().err
    )

    # Before their scheme was written, held-out episodes had other seeds.
    summary = (there / "summary.json").read_text()
    former = summary.replace(f'"episode_seeds": "{SCHEME}",', "")
    (there / "summary.json").write_text(former)
    assert main(words) != 0 and former != summary
    assert (
        "there was tested in other held-out episodes: its episode seeds are None" in capsys.readouterr().err
    )
    (there / "summary.json").write_text(summary)

    # What is whole needs no run; what was not asked for there is run here.
    assert main(["study", str(study), "--add", str(here), "--runs", f"{here}-no", "--output", str(here)]) == 0
    assert len(trained) == 2 and not Path(f"{here}-no").exists()
    assert main([*words, "arms=slow", "suites=held-out,other-nouns,controls"]) == 0
    assert "slow-seed1 of" in (output := capsys.readouterr().out) and "was not tested in" in output

    # A file that was cut, or put together badly.
    evaluations = whole / "evaluations.csv"
    lines = evaluations.read_text().splitlines(keepends=True)
    evaluations.write_text("".join(line for line in lines if not line.startswith("quick,1,trained")))
    assert main([*words[:-1], str(whole), "arms=quick"]) == 0
    assert (
        "quick-seed1 of" in (output := capsys.readouterr().out)
        and "evaluations.csv lacks its held-out" in output
    )
    evaluations.write_text("".join([*lines, lines[1]]))
    assert main([*words[:-1], str(whole), "arms=quick"]) != 0
    assert "twice" in capsys.readouterr().err


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a study beside what one of its seeds has left; not to be changed."""
    path = tmp_path_factory.mktemp("studied") / "tiny.yaml"
    path.write_text(_STUDY)
    assert main(_words(path, "seeds=1")) == 0
    return path


@pytest.mark.parametrize(
    ("change", "words", "message"),
    one_in(
        2,
        [
            (None, ["episodes=5"], "holds results of 'tiny' with 4 episodes, and not of tiny with 5"),
            (
                None,
                ["arms.slow.algorithm.args.learning_rate=2e-5"],
                "slow with algorithm.args.learning_rate=1e-05",
            ),
            (None, ["training.steps=96"], "quick with training.steps=64 (here 96)"),
            (None, ["evaluation.deterministic=true"], "evaluation.deterministic=False (here True)"),
            (("summary.json", '"study": "tiny"', '"study": "small"'), [], "holds results of 'small'"),
            (("summary.json", "{", "["), [], "holds no results of a study"),
            (
                ("evaluations.csv", "quick,1,trained,held-out,all,4,", "quick,1,trained,held-out,all,4,x"),
                [],
                "no results",
            ),
            (("curves.csv", "quick,1,", "quick,one,"), [], "holds no results of a study"),
            (
                ("evaluations.csv", "quick,1,trained,held-out,all,4,", "quick,1,trained,held-out,all,4,5"),
                [],
                "expected a share",
            ),
            (("arms/slow.yaml", "seed:", "sead:"), [], "sead"),
            (("evaluations.csv", "quick,1,trained,", "quick,1,<img src=x>,"), [], "agent is '<img src=x>'"),
            (("evaluations.csv", "held-out,all,4", "held-out,=A1,4"), [], "task is '=A1', expected letters"),
        ],
    ),
)
def test_results_that_are_not_taken_over(
    change: tuple[str, str, str] | None,
    words: list[str],
    message: str,
    studied: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shutil.copytree(studied.parent / "out", tmp_path / "out")
    if change is not None:
        name, before, after = change
        text = (out / name).read_text()
        assert before in text
        (out / name).write_text(text.replace(before, after, 1))
    again = ["study", str(studied), "seeds=1", *words, "--runs", str(tmp_path / "again"), "--add", str(out)]
    assert main([*again, "--output", str(tmp_path / "new")]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "again").exists() and not (tmp_path / "new").exists()


def test_a_name_is_no_formula_and_no_markup(tmp_path: Path) -> None:
    formulas = ["=cmd|'/C calc'!A0", "+1+A1", "-1-A1", "@SUM(1)", "\t=1"]
    same = ["trained", "-1.5", "+3", "-1e-07", "-inf", "GoTo-v0", "a=b", "'=1", "a\n=1"]
    write_csv(
        tmp_path / "a.csv", ["=1", "agent"], [[*formulas, *same], [None, 1, -0.5, 1 / 3, "a\r=1", "\r=1"]]
    )
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["'=1", "agent"],
        [*(f"'{text}" for text in formulas), *same],
        ["", "1", "-0.5", "0.333333", "a\n=1", "'\n=1"],  # whose quotes no spreadsheet overlooks
    ]
    theirs = "x |\r\n\n# Retracted\u2028<img src=x>`\x1b[2J![](http://host)"
    table = markdown_table(["test", theirs], [["**-0.250 [-0.500, 0.100]**", "pick_up – “it”"]])
    assert table.split("\n") == [
        "| test | x &#124;  # Retracted &lt;img src=x>&#96;�[2J![&#93;(http://host) |",
        "| --- | --- |",
        "| **-0.250 [-0.500, 0.100]** | pick_up – “it” |",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![i][r]", "![i&#93;[r]"),
        ("[r]: javascript:x", "[r&#93;: javascript:x"),
        ("[l](u)", "[l&#93;(u)"),
        ("0.5 [0.4, 0.6]", "0.5 [0.4, 0.6]"),
    ],
)
def test_a_name_is_no_link_and_no_picture(text: str, shown: str) -> None:
    assert in_markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ppo", "`ppo`"),
        ("a|<b>\nc", "`a|<b> c`"),
        ("x `y`` z", "``` x `y`` z ```"),
        ("`", "`` ` ``"),
        ("", "`  `"),
    ],
)
def test_a_name_is_code_whatever_is_in_it(text: str, code: str) -> None:
    assert as_code(text) == code


def test_results_are_added_only_where_they_count(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words(study, "--add", str(study.parent), "--no-results")) != 0
    assert "--add does nothing with --no-results" in capsys.readouterr().err
    assert main(_words(study, "--add", str(study.parent))) != 0
    assert "holds no results of a study" in capsys.readouterr().err
    study.write_text(_WRITING)
    assert main(_words(study, "--add", str(study.parent))) != 0
    assert "--add is for studies that report success rates" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_STUDY.replace("reference: quick", "reference: quik"), "unknown arm 'quik'"),
        (_STUDY.replace("reference: quick", "reference: random"), "reference: random is not trained"),
        (_WRITING.replace("seeds: [1]", "seeds: [1]\nreference: plain"), "reference=plain does nothing"),
        (
            _WRITING.replace('metrics=[]"]', 'metrics=[]"], suites: [val]'),
            "arm plain is tested in val first, and arm measured in test",
        ),
    ],
)
def test_what_no_results_would_tell_of_is_refused(
    text: str, message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(text)
    assert main(_words(study)) != 0
    assert message in capsys.readouterr().err
    assert not (study.parent / "runs").exists()


@THOROUGH
def test_several_processes_go_on_where_one_fails(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (study.parent / "registers.py").write_text("import tests.conftest\n\ntests.conftest.pytest_configure()\n")
    monkeypatch.syspath_prepend(study.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    broken = study.parent / "runs" / "slow-seed1"
    broken.mkdir(parents=True)
    (broken / "metrics.jsonl").write_text("no row\n")
    few = ["seeds=1", "arms=quick,slow", "suites=held-out", "--import", "registers", "--jobs", "2"]
    assert main(_words(study, *few)) == 1
    captured = capsys.readouterr()
    assert "1 of 2 failed (slow-seed1)" in captured.err
    assert "line 1 of" in captured.out and "study.log" in captured.out  # what the run said last
    assert "quick-seed1 is done" in captured.out
    assert "Unfinished or failed" in (study.parent / "out" / "README.md").read_text()
    (broken / "metrics.jsonl").unlink()
    assert main(_words(study, *few, "--jobs", "1")) == 0  # what is left needs no process of its own
    output = capsys.readouterr().out
    assert "[2/2] slow-seed1: training" in output and "quick-seed1: training" not in output


def test_an_interrupt_ends_all_processes_and_is_passed_on(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(words: list[str], log: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "60"], stdout=log))
        return started[-1]

    def tell(text: str) -> None:
        if text.startswith("[2/6]"):
            raise KeyboardInterrupt

    monkeypatch.setattr(beside, "_start", start)
    spec, arms = read_study(str(study))
    with pytest.raises(KeyboardInterrupt):
        run_jobs_beside(make_jobs(spec, arms, study.parent / "runs"), lambda job: [job.name], 2, tell)
    assert len(started) == 2 and all(process.returncode == -signal.SIGTERM for process in started)


@THOROUGH
def test_a_clone_learns_from_as_many_transitions_as_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cloning.yaml"
    path.write_text(
        "name: cloning\nseeds: [1]\nepisodes: 2\n"
        "common: [world.env=BabyAI-GoToObj-v0, world.history=1, world.num_envs=4, world.num_steps=8, "
        "training.epochs=null, training.steps=64, 'evaluation.baselines=[]', device=cpu]\n"
        "arms:\n  clone: {experiment: glam/bc, overrides: [model.path=starter], data: expert}\n"
        "  of-clone: {experiment: glam/bc, overrides: [model.path=starter], data: clone}\n"
    )
    assert main(_words(path, "arms=clone")) == 0
    described = json.loads((tmp_path / "runs" / "clone-seed1" / "data" / "collection.json").read_text())
    assert described["agent"] == "expert" and described["world.env"] == "BabyAI-GoToObj-v0"
    # More steps would need more transitions than the clone began with, which its run has to learn from again.
    folder = tmp_path / "runs" / "clone-seed1"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "study.log"}
    assert main(_words(path, "arms=clone", "training.steps=640")) != 0
    assert "learns from the " in (output := capsys.readouterr().out) and "--runs" in output
    assert before == {p: p.read_bytes() for p in before}
    assert main(_words(path)) == 0
    described = json.loads((tmp_path / "runs" / "of-clone-seed1" / "data" / "collection.json").read_text())
    assert described["agent"] == "trained" and described["run"] == "clone-seed1"
    assert (tmp_path / "out" / "cloning.svg").exists()


@THOROUGH
@pytest.mark.usefixtures("all_figures")
def test_a_study_of_texts_keeps_and_draws_what_its_world_says(tmp_path: Path) -> None:
    path = tmp_path / "writers.yaml"
    path.write_text(_WRITING)
    assert main(_words(path)) == 0
    runs, out = tmp_path / "runs", tmp_path / "out"
    curves = _rows(out / "curves.csv")
    assert list(curves[0]) == [
        "arm",
        "seed",
        "step",
        "seconds",
        "episodes",
        *WritingWorld.presentation.curves,
    ]
    last = read_metrics(runs / "plain-seed1")[-1]
    for column in ("return_mean", "kl_mean", "entropy"):
        assert float(curves[-1][column]) == pytest.approx(last[column], rel=1e-5)
    assert {row["value_loss"] for row in curves} == {""}  # nobody here estimates values
    titles = re.findall(r">([^<>]+)</text>", (out / "training.svg").read_text())
    assert {"reward", "KL to the reference", "entropy", "plain", "measured"} <= set(titles)
    assert "value loss" not in titles
    episodes = _rows(out / "episodes.csv")
    measure = "synthetic/increasing_numbers_in_text"
    assert [bool(row[measure]) for row in episodes] == [row["arm"] == "measured" for row in episodes]
    assert len(episodes) == 2 * 3 and all(row["reward"] for row in episodes)
    held_out = json.loads((runs / "plain-seed1" / "evaluation" / "test.json").read_text())
    reward = held_out["agents"]["trained"]["figures"]["reward"]["value"]
    summary = json.loads((out / "summary.json").read_text())
    (line,) = (one for one in summary["figures"] if (one["arm"], one["figure"]) == ("plain", "reward"))
    assert line["of_seeds"][0] == pytest.approx(reward)
    assert summary["tokens"] == {"measured": 40, "plain": 40} and not summary["unfinished"]
    page = (out / "README.md").read_text()
    assert "3 held-out texts for each run; tokens of training: measured 40, plain 40." in page
    assert "Of few texts." in page and "Of `test`: the pool's test split." in page
    assert "training texts over tokens" in page and "frames" not in page

    # A world of one's own says likewise what is kept, what is drawn and what it is called.
    class Strokes(WritingWorld):
        unit, episodes = "strokes", "drawings"
        curves: ClassVar[Mapping[str, str | None]] = {"entropy": "doubt", "loss": None}

    study, arms = read_study(str(path))
    jobs = make_jobs(study, arms, runs)
    write_study_by_figures(study, jobs, Strokes, tmp_path / "strokes", ["study"])
    assert list(_rows(tmp_path / "strokes" / "curves.csv")[0])[3:] == [
        "seconds",
        "episodes",
        "entropy",
        "loss",
    ]
    titles = re.findall(r">([^<>]+)</text>", (tmp_path / "strokes" / "training.svg").read_text())
    assert "doubt" in titles and "loss" not in titles
    assert "3 held-out drawings for each run; strokes of" in (tmp_path / "strokes" / "README.md").read_text()


@THOROUGH
def test_an_arm_is_trained_when_its_epochs_are_over(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many steps that takes: the number of steps that an experiment without epochs would take says nothing."""
    (study.parent / "texts.jsonl").write_text(
        "".join(
            f'{{"prompt": "go {i}", "reference": "north {i}", "split": "{split}"}}\n'
            for i in range(6)
            for split in ("train", "test")
        )
    )
    study.write_text(
        "name: readers\nseeds: [1]\nsuites: [test]\nepisodes: 2\n"
        "arms: {reader: {experiment: rl4lms/increasing_numbers_reinforce_pp}}\n"
    )
    words = [
        "world.pool=jsonl",
        "~world.args",
        f"world.args={{path: {study.parent / 'texts.jsonl'}, reference_column: reference}}",
        "world.num_texts=4",
    ]
    words += ["world.num_tokens=6", "model.path=starter", "device=cpu", "evaluation.baselines=[]"]
    words += ["algorithm.id=supervised", "~algorithm.args", "evaluation.metrics=[]", "~reward"]
    assert main(_words(study, *words, "training.epochs=2")) == 0, capsys.readouterr()
    rows = read_metrics(study.parent / "runs" / "reader-seed1")
    assert rows[-1]["step"] < 200
    runs = study.parent / "runs"
    (job,) = make_jobs(*read_study(str(study), [*words, "training.epochs=2"]), runs)
    assert job.is_done()
    (longer,) = make_jobs(*read_study(str(study), [*words, "training.epochs=3"]), runs)
    assert not longer.is_trained()
    assert main(_words(study, *words, "training.epochs=3")) == 0 and longer.is_trained()


def test_a_study_of_which_nothing_is_finished_has_no_results(tmp_path: Path) -> None:
    path = tmp_path / "writers.yaml"
    path.write_text(_WRITING)
    study, arms = read_study(str(path))
    jobs = make_jobs(study, arms, tmp_path / "runs")
    with pytest.raises(RunError, match="no run of writers is finished yet"):
        write_study_by_figures(study, jobs, WritingWorld, tmp_path / "out", ["study"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["arms=quik"], "'quick'"),
        (["arms.quik.seed=1"], "'quick'"),
        (["arms.slow.training.step=8"], "training.steps"),
        (["training.step=8"], "arm quick"),
        (["seed=2"], "seeds=1,2,3"),
        (["seeds=a"], "seeds"),
        (["episodes=0"], "episodes"),
        (["suites=heldout"], "held-out"),
        (["arms.slow.algorithm.id=drnn"], "drrn"),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_runs(
    settings: list[str], message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_words(study, *settings)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not (study.parent / "runs").exists()


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("experiment: random", "experiment: randm", "randm"),
        ("about: learns fast", "abut: learns fast", "abut"),
        ("experiment: random", "experiment: random\n    data: slw", "'slow'"),
        ("arms:", "arms: {}\nmore:", "more"),
        ("name: tiny", "name: ../tiny", "names '../tiny'"),
        ("  slow:", "  /slow:", "names '/slow'"),
        ("seeds: [1, 2]", "seeds: [1, 1]", "seeds must be numbers, each once, as in 1,2,3, got [1, 1]"),
        ("episodes: 4", "episodes: 0", "episodes must be a positive number, got [0]"),
        (
            "common:",
            "common:\n  - training.epochs=7",
            "training.epochs=7 for all arms, and none of them uses it",
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_line(
    wrong: str, right: str, message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(_STUDY.replace(wrong, right))
    assert main(_words(study)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_a_run_of_another_configuration_is_not_taken(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_words(study, "seeds=1", "arms=slow")) == 0
    assert main(_words(study, "seeds=1", "arms=slow", "algorithm.args.gamma=0.5")) == 1
    assert "gamma" in capsys.readouterr().out


def test_an_arm_may_be_an_experiment_of_ones_own(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study.parent / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "table.yaml").write_text(
        "# @package _global_\nname: table\nworld: {id: text, env: test/Corridor-v0}\npolicy: {id: test-table}\n"
    )
    study.write_text(
        _STUDY.replace(
            'experiment: demo-easy\n    overrides: ["~policy.args", policy.id=test-table, a',
            "experiment: table\n    overrides: [a",
        )
    )
    few = ["seeds=1", "arms=slow", "suites=held-out"]
    assert main(_words(study, *few)) == 1
    assert "unknown experiment 'table'" in capsys.readouterr().err
    assert main(_words(study, *few, "--config-dir", str(folder.parent))) == 0, capsys.readouterr()
    assert (study.parent / "runs" / "slow-seed1" / "evaluation" / "held-out.json").exists()


@pytest.mark.parametrize("name", one_in(4, sorted(studies())))
def test_a_bundled_study_can_be_composed(name: str, tmp_path: Path) -> None:
    study, arms = read_study(name)
    jobs = make_jobs(study, arms, tmp_path)
    assert len(jobs) == sum(len(arm.seeds or study.seeds) for arm in arms.values()) and study.name == name


def test_an_unknown_study_is_told_of_one_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "glam-study" in studies()
    assert main(["study", "glam-studi"]) == 1
    assert "glam-study" in capsys.readouterr().err
