"""A kind of world that is defined outside the package can be used in every command."""

import json
import sys
from pathlib import Path

import pytest

from groundling.algorithms.algorithm import algorithms
from groundling.cli.main import main
from groundling.policies.policy import policies
from groundling.training.tracking import read_metrics
from groundling.worlds import worlds

_MODULE = "tests.worlds.counting"
_IMPORT = ["--import", _MODULE]
_EXPERIMENT = """
name: counting
world: {id: counting, num_envs: 4, num_steps: 8}
policy: {id: counting_policy}
algorithm: {id: a2c}
training: {steps: 64}
evaluation: {episodes: 4, baselines: [zero-shot, upwards]}
device: cpu
"""
_STUDY = """
name: counted
seeds: [1]
episodes: 3
arms:
  plain: {experiment: upwards}
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the experiment's file; the registries are restored after the test."""
    for registry in (worlds, policies, algorithms):
        for name in ("_factories", "_origins"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    for module in (_MODULE, "examples.own_world"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    path = tmp_path / "experiment" / "counting.yaml"
    path.parent.mkdir()
    path.write_text("# @package _global_\n" + _EXPERIMENT)
    return path


def test_it_trains_and_is_evaluated_reported_and_watched(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, page = tmp_path / "run", tmp_path / "report.html"
    words = ["counting", "--config-dir", str(tmp_path), f"run_dir={run_dir}", *_IMPORT]
    assert main(["train", *words]) == 0
    assert [row["step"] for row in read_metrics(run_dir)] == [32, 64]
    assert "last_number" in read_metrics(run_dir)[-1]
    assert main(["train", *words, "training.steps=96"]) == 0  # continues from its checkpoint
    assert [row["step"] for row in read_metrics(run_dir)] == [32, 64, 96]
    assert main(["evaluate", str(run_dir), *_IMPORT]) == 0
    evaluated = json.loads((run_dir / "evaluation" / "held-out.json").read_text())
    assert list(evaluated["agents"]) == ["trained", "zero-shot", "upwards"]
    assert evaluated["agents"]["upwards"]["figures"]["success"]["value"] == 1
    assert main(["report", str(run_dir), "--output", str(page), *_IMPORT]) == 0
    report = page.read_text()
    for words_of_it in ("Evaluation: held-out", "last number"):
        assert words_of_it in report
    capsys.readouterr()
    assert main(["watch", str(run_dir), "--fast", *_IMPORT]) == 0
    assert "at " in capsys.readouterr().out


def test_its_agents_and_suites_take_part(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, name in (("worlds", "counting"), ("agents", "upwards")):
        main(["list", kind, *_IMPORT])
        assert name in capsys.readouterr().out
    assert main(["evaluate", "upwards", *_IMPORT]) == 1
    assert "no default experiment" in capsys.readouterr().err
    monkeypatch.setattr(worlds.get("counting"), "experiment", str(experiment))
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "upwards", "world.target=3", "--episodes", "2", *_IMPORT]) == 0
    (path,) = Path("runs", "upwards", "3", "evaluation").glob("*.json")
    assert path.stem == "held-out" and list(json.loads(path.read_text())["agents"]) == ["upwards"]
    assert main(["evaluate", "upwards", "world.env=BabyAI-GoToLocal-v0", *_IMPORT]) == 1
    assert "upwards cannot play BabyAI-GoToLocal-v0" in capsys.readouterr().err
    assert main(["evaluate", "counting", *_IMPORT]) == 1
    assert "upwards" in capsys.readouterr().err  # listed among the known agents


def test_a_study_without_suites_uses_the_default(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["list", "worlds", *_IMPORT])
    monkeypatch.setattr(worlds.get("counting"), "experiment", str(experiment))
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "counted.yaml"
    study.write_text(_STUDY)
    assert main(["study", str(study), *_IMPORT]) == 0, capsys.readouterr().err
    assert "last number" in Path("results", "counted", "README.md").read_text()
