"""`groundling study`: runs, interruptions, several processes."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from groundling.cli.main import INTERRUPTED, main
from groundling.evaluation.evaluate import evaluate
from groundling.runtime import parallel
from groundling.studies import run as study_module
from groundling.studies.definition import read_study
from groundling.studies.run import make_jobs, run_in_processes
from groundling.training.tracking import read_metrics
from tests.studies import FIGURES, FILES, STUDY, rows_of, study_command
from tests.thorough import THOROUGH


def test_an_interrupted_study_continues_without_repeating_anything(
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
    assert main(study_command(study)) == INTERRUPTED
    runs, out = study.parent / "runs", study.parent / "out"
    assert not out.exists()
    first = (runs / "quick-seed1" / "metrics.jsonl").read_bytes()
    assert (runs / "quick-seed2").exists() and not (runs / "slow-seed2").exists()

    monkeypatch.setattr(study_module, "evaluate", evaluate)
    assert main(study_command(study)) == 0
    output = capsys.readouterr().out
    assert "[1/6] quick-seed1: evaluating" in output and "[5/6] slow-seed2: training" in output
    assert "[6/6] random-seed2" in output and "skipping the tests other-nouns" in output
    assert (runs / "quick-seed1" / "metrics.jsonl").read_bytes() == first
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES + FIGURES)

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("done again")

    for name in ("evaluate", "train"):
        monkeypatch.setattr(study_module, name, never)
    before = {path: path.read_bytes() for path in out.rglob("*.*") if path.suffix != ".png"}
    assert main(study_command(study)) == 0
    assert before == {path: path.read_bytes() for path in before}


def test_an_evaluation_with_other_settings_is_repeated(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = study_command(study, "seeds=1", "arms=quick", "suites=held-out")
    assert main(words) == 0
    run = study.parent / "runs" / "quick-seed1"
    path = run / "evaluation" / "held-out.json"
    first = path.read_bytes()
    changed = ["evaluation.deterministic=true", "evaluation.episodes=4"]
    assert main(["evaluate", str(run), *changed]) == 0 and path.read_bytes() != first
    assert main(["report", str(run)]) == 0
    assert "settings: evaluation.deterministic=true" in (run / "report.html").read_text()
    assert main(words) == 0 and path.read_bytes() == first
    before = json.loads(first)  # written by a version that did not record it
    path.write_text(json.dumps({k: v for k, v in before.items() if k not in ("overrides", "played_with")}))
    assert main(["report", str(run)]) == 0 and "but with" not in (run / "report.html").read_text()
    assert main(words) == 0 and path.read_bytes() == first


def test_a_baseline_that_cannot_play_is_left_out_and_nothing_is_played_twice(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["seeds=1", "arms=quick", "suites=held-out", "evaluation.baselines=[zero-shot,random,expert]"]
    study.write_text(STUDY.replace(', "evaluation.baselines=[zero-shot]"', ""))
    assert main(study_command(study, *few)) == 0
    assert "skipping baseline expert" in capsys.readouterr().err
    rows = rows_of(study.parent / "out" / "evaluations.csv")
    assert {row["agent"] for row in rows} == {"trained", "zero-shot", "random"}
    assert "Unfinished" not in (study.parent / "out" / "README.md").read_text()
    path = study.parent / "runs" / "quick-seed1" / "evaluation" / "held-out.json"
    assert "the expert is BabyAI's bot" in json.loads(path.read_text())["left_out"]["expert"]
    monkeypatch.setattr(study_module, "evaluate", None)
    assert main(study_command(study, *few)) == 0
    assert main(["report", str(study.parent / "runs" / "quick-seed1")]) == 0
    assert "expert is omitted: " in (study.parent / "runs" / "quick-seed1" / "report.html").read_text()


@THOROUGH
def test_other_processes_continue_if_one_fails(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (study.parent / "registers.py").write_text("import tests.conftest\n\ntests.conftest.pytest_configure()\n")
    monkeypatch.syspath_prepend(study.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    broken = study.parent / "runs" / "slow-seed1"
    broken.mkdir(parents=True)
    (broken / "metrics.jsonl").write_text("no row\n")
    few = ["seeds=1", "arms=quick,slow", "suites=held-out", "--import", "registers", "--jobs", "2"]
    assert main(study_command(study, *few)) == 1
    captured = capsys.readouterr()
    assert "1 of 2 runs failed (slow-seed1)" in captured.err
    assert "line 1 of" in captured.out and "study.log" in captured.out  # the last output of the run
    assert "quick-seed1 finished" in captured.out
    assert "Unfinished or failed" in (study.parent / "out" / "README.md").read_text()
    (broken / "metrics.jsonl").unlink()
    assert main(study_command(study, *few, "--jobs", "1")) == 0  # the remaining work needs no separate process
    output = capsys.readouterr().out
    assert "[2/2] slow-seed1: training" in output and "quick-seed1: training" not in output


def test_an_interrupt_ends_all_processes_and_is_passed_on(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(words: list[str], log: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "60"], stdout=log))
        return started[-1]

    def report(text: str) -> None:
        if text.startswith("[2/6]"):
            raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "_start", start)
    spec, arms = read_study(str(study))
    with pytest.raises(KeyboardInterrupt):
        run_in_processes(make_jobs(spec, arms, study.parent / "runs"), lambda job: [job.name], 2, report)
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
    assert main(study_command(path, "arms=clone")) == 0
    described = json.loads((tmp_path / "runs" / "clone-seed1" / "data" / "collection.json").read_text())
    assert described["agent"] == "expert" and described["world.env"] == "BabyAI-GoToObj-v0"
    # More steps would require more transitions than were cloned initially, and the run would have to clone them again.
    folder = tmp_path / "runs" / "clone-seed1"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "study.log"}
    assert main(study_command(path, "arms=clone", "training.steps=640")) != 0
    assert "learns from the " in (output := capsys.readouterr().out) and "--runs" in output
    assert before == {p: p.read_bytes() for p in before}
    assert main(study_command(path)) == 0
    described = json.loads((tmp_path / "runs" / "of-clone-seed1" / "data" / "collection.json").read_text())
    assert described["agent"] == "trained" and described["run"] == "clone-seed1"
    assert (tmp_path / "out" / "cloning.svg").exists()


@THOROUGH
def test_an_arm_is_trained_when_its_epochs_are_over(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any number of steps is allowed, because the number without epochs would be meaningless."""
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
    assert main(study_command(study, *words, "training.epochs=2")) == 0, capsys.readouterr()
    rows = read_metrics(study.parent / "runs" / "reader-seed1")
    assert rows[-1]["step"] < 200
    runs = study.parent / "runs"
    (job,) = make_jobs(*read_study(str(study), [*words, "training.epochs=2"]), runs)
    assert job.is_done()
    (longer,) = make_jobs(*read_study(str(study), [*words, "training.epochs=3"]), runs)
    assert not longer.is_trained()
    assert main(study_command(study, *words, "training.epochs=3")) == 0 and longer.is_trained()


def test_a_run_of_another_configuration_is_not_taken(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(study_command(study, "seeds=1", "arms=slow")) == 0
    assert main(study_command(study, "seeds=1", "arms=slow", "algorithm.args.gamma=0.5")) == 1
    assert "gamma" in capsys.readouterr().out


def test_an_arm_may_be_a_users_experiment(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study.parent / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "table.yaml").write_text(
        "# @package _global_\nname: table\nworld: {id: text, env: test/Corridor-v0}\npolicy: {id: test-table}\n"
    )
    study.write_text(
        STUDY.replace(
            'experiment: demo-easy\n    overrides: ["~policy.args", policy.id=test-table, a',
            "experiment: table\n    overrides: [a",
        )
    )
    few = ["seeds=1", "arms=slow", "suites=held-out"]
    assert main(study_command(study, *few)) == 1
    assert "unknown experiment 'table'" in capsys.readouterr().err
    assert main(study_command(study, *few, "--config-dir", str(folder.parent))) == 0, capsys.readouterr()
    assert (study.parent / "runs" / "slow-seed1" / "evaluation" / "held-out.json").exists()
