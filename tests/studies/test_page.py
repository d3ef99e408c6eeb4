"""The results folder of a study."""

import json
import re
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.errors import RunError
from groundling.intervals import IntervalEstimate, wilson_interval
from groundling.studies.definition import read_study
from groundling.studies.figures import page_of_figures
from groundling.studies.page import write_page
from groundling.studies.run import make_jobs
from groundling.training.tracking import read_metrics
from groundling.worlds.episode import Presentation
from groundling.worlds.writing.world import WritingWorld
from tests.studies import WRITING, rows_of, study_command
from tests.thorough import THOROUGH


@pytest.mark.usefixtures("all_figures")
def test_the_results_are_those_of_the_runs(study: Path) -> None:
    assert main(study_command(study)) == 0
    runs, out = study.parent / "runs", study.parent / "out"
    assert len(rows_of(out / "curves.csv")) == 2 * 2 * 2
    scores = {(r["arm"], r["seed"], r["agent"], r["task"]): r for r in rows_of(out / "evaluations.csv")}
    held_out = json.loads((runs / "quick-seed2" / "evaluation" / "held-out.json").read_text())
    for agent in ("trained", "zero-shot"):
        success = held_out["agents"][agent]["figures"]["success"]["value"]
        assert float(scores["quick", "2", agent, "all"]["success"]) == pytest.approx(success)
    success = {
        arm: [float(scores[arm, seed, "trained", "all"]["success"]) for seed in "12"] for arm in ("quick", "slow")
    }
    summary = {(r["arm"], r["measure"], r["agent"], r["suite"]): r for r in rows_of(out / "summary.csv")}
    differences = [one - other for one, other in zip(success["slow"], success["quick"], strict=True)]
    for measure, values in (("success", success["slow"]), ("difference", differences)):
        line = summary["slow", measure, "trained", "held-out"]
        found = [float(line[name]) for name in ("value", "low", "high")]
        assert line["seeds"] == "2" and found == pytest.approx([sum(values) / 2, min(values), max(values)])
    assert ("quick", "difference", "trained", "held-out") not in summary
    quick, slow = (float(summary[arm, "area", "trained", ""]["value"]) for arm in ("quick", "slow"))
    assert 0 <= quick <= 1 and ("random", "area", "random", "") not in summary
    assert float(summary["slow", "difference", "trained", ""]["value"]) == pytest.approx(slow - quick, abs=1e-5)
    page = (out / "README.md").read_text()
    difference = IntervalEstimate(sum(differences) / 2, min(differences), max(differences)).text("+.3f")
    differs = (min(differences) > 0 or max(differences) < 0) and min(differences) < max(differences)
    cell = f"**{difference}**" if differs else difference
    assert "## Differences from quick\n" in page and f"| held-out | {cell} |" in page
    assert "random" in (out / "success.svg").read_text()  # a line in addition to the curves
    assert "groundling study" in page and "| quick | learns fast |" in page and "Unfinished" not in page
    each = [IntervalEstimate(share, *wilson_interval(round(4 * share), 4)) for share in success["slow"]]
    whole = sum(success["slow"]) / 2
    together = IntervalEstimate(whole, *wilson_interval(round(8 * whole), 8))
    assert "| slow | " + " | ".join(one.text(".3f") for one in [*each, together]) + " |" in page
    assert len(json.loads((out / "summary.json").read_text())["figures"]) == len(summary)

    # With a test that suits no arm, only the area under the curve remains.
    assert main(study_command(study, "suites=other-nouns", "seeds=1", "arms=quick")) == 0
    page = (out / "README.md").read_text()
    assert re.search(r"\| quick \| learns fast \| [\d.]+ \|  \|  \|", page) and "## Without training" not in page

    # More episodes are a new evaluation; longer training continues a run, which is evaluated again.
    assert main(study_command(study, "episodes=6", "seeds=1", "arms=quick", "training.steps=96")) == 0
    again = json.loads((runs / "quick-seed1" / "evaluation" / "held-out.json").read_text())
    assert again["agents"]["trained"]["episodes"] == 6 and again["checkpoint"] == "000003"


@THOROUGH
@pytest.mark.usefixtures("all_figures")
def test_a_study_of_texts_uses_its_worlds_columns_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "writers.yaml"
    path.write_text(WRITING)
    assert main(study_command(path)) == 0
    runs, out = tmp_path / "runs", tmp_path / "out"
    curves = rows_of(out / "curves.csv")
    assert list(curves[0]) == ["arm", "seed", "step", "seconds", "episodes", *WritingWorld.presentation.curves]
    last = read_metrics(runs / "plain-seed1")[-1]
    for column in ("return_mean", "kl_mean", "entropy"):
        assert float(curves[-1][column]) == pytest.approx(last[column], rel=1e-5)
    assert {row["value_loss"] for row in curves} == {""}  # no arm predicts values
    titles = re.findall(r">([^<>]+)</text>", (out / "training.svg").read_text())
    assert {"reward", "KL to the reference", "entropy", "plain", "measured"} <= set(titles)
    assert "value loss" not in titles
    episodes = rows_of(out / "episodes.csv")
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
    assert "3 held-out texts per run; tokens of training: measured 40, plain 40." in page
    assert "Of few texts." in page and "`test`: the pool's test split." in page
    assert "training texts over tokens" in page and "frames" not in page

    # A custom world can also define what is stored and plotted, and its labels.
    class Strokes(WritingWorld):
        presentation = Presentation("strokes", "drawings", curves={"entropy": "doubt", "loss": None})

    study, arms = read_study(str(path))
    jobs = make_jobs(study, arms, runs)
    write_page(study, page_of_figures(study, jobs, Strokes), tmp_path / "strokes", ["study"])
    assert list(rows_of(tmp_path / "strokes" / "curves.csv")[0])[3:] == ["seconds", "episodes", "entropy", "loss"]
    titles = re.findall(r">([^<>]+)</text>", (tmp_path / "strokes" / "training.svg").read_text())
    assert "doubt" in titles and "loss" not in titles
    assert "3 held-out drawings per run; strokes of" in (tmp_path / "strokes" / "README.md").read_text()


def test_a_study_without_finished_runs_has_no_results(tmp_path: Path) -> None:
    path = tmp_path / "writers.yaml"
    path.write_text(WRITING)
    study, arms = read_study(str(path))
    jobs = make_jobs(study, arms, tmp_path / "runs")
    with pytest.raises(RunError, match="no run of writers has finished yet"):
        page_of_figures(study, jobs, WritingWorld)
