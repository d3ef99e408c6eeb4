"""The first object that the agent interacted with, in summaries, tables, files and reports."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.config.compose import compose, to_yaml
from groundling.envs.text_episode import FirstInteraction, Target, TextEpisode
from groundling.intervals import wilson_interval
from groundling.runtime import parallel
from groundling.worlds.episode import Figure, Played, number
from groundling.worlds.episode import summarise as summarise_update
from groundling.worlds.text.episodes import episode_of
from groundling.worlds.text.suites import SUITES
from groundling.worlds.text.world import TextWorld
from tests.launching import Forked
from tests.thorough import THOROUGH

find_suites = TextWorld.find_suites
_ROOM = ["world.env=BabyAI-MixedTrainLocal-v0", "world.args={task: pickup, num_dists: 3, max_steps: 12}", "device=cpu"]


def _episode(target: Target | None, chance: float | None = 0.25) -> TextEpisode:
    first = None if target is None else FirstInteraction(target, chance)
    return TextEpisode(0, 0, 1, "go", "go", (0,), 0.0, False, first)


def _figures(episodes: list[TextEpisode]) -> dict[str, Figure]:
    return Played([episode_of(k, e) for k, e in enumerate(episodes)]).figures()


def test_shares_are_of_the_episodes_that_report_them() -> None:
    targets: list[Target] = ["named"] * 3 + ["other"] + ["none"] * 4
    episodes = [*map(_episode, targets), _episode(None)]
    figures = _figures(episodes)
    assert {name: (f.value, f.episodes) for name, f in figures.items() if name.startswith("first")} == {
        "first_named": (3 / 8, 8),
        "first_other": (1 / 8, 8),
        "first_none": (4 / 8, 8),
        "first_precision": (3 / 4, 4),
        "first_chance": (0.25, 8),
    }
    assert (figures["first_named"].low, figures["first_named"].high) == wilson_interval(3, 8)
    row = summarise_update(episodes)
    columns = [row[f"first_{k}"] for k in ("named", "other", "none", "precision", "chance")]
    assert columns == [3 / 8, 1 / 8, 1 / 2, 3 / 4, 1 / 4]
    assert not {"first_precision", "first_chance"} & _figures([_episode("none", None)]).keys()
    assert "first_named" not in {**_figures([_episode(None)]), **summarise_update([_episode(None)])}


def test_suites_have_names_in_groups() -> None:
    others = find_suites("balrog-babyai,forms")
    assert find_suites("all") == [name for name in SUITES if name not in others]
    assert set(find_suites("generalisation")) < set(find_suites("glam"))
    assert find_suites("held-out,controls") == ["held-out", "swapped", "dropped", "scrambled", "corrupted"]
    assert set(find_suites("glam")) == set(find_suites("all")) - set(find_suites("controls"))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the random agent's evaluation, with the other files of a run."""
    run_dir = tmp_path_factory.mktemp("run")
    words = ["evaluate", "random", *_ROOM, f"run_dir={run_dir}", "--suite", "held-out,controls"]
    assert main([*words, "--episodes", "24"]) == 0
    config = compose("demo-easy", ["~world.args", *_ROOM, f"run_dir={run_dir}"])
    (run_dir / "config.yaml").write_text(to_yaml(config))
    rows = [
        {"update": k, "step": k, "seconds": k, "episodes": k, "success_rate": 0.5, **_episode("named").figures}
        for k in (1, 2)
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


def _without_samples(run: Path, to: Path) -> Path:
    """Return a copy whose report does not replay episodes."""
    return shutil.copytree(run, to, ignore=shutil.ignore_patterns("samples"))


def test_parallel_suites_are_evaluated_as_in_sequence(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode that fails is named, and does not affect the others."""
    monkeypatch.setattr(parallel, "_start", Forked)
    obstacle = tmp_path / "evaluation" / "dropped.json"
    obstacle.mkdir(parents=True)
    words = ["evaluate", "random", *_ROOM, "--episodes", "24", f"run_dir={tmp_path}", "--jobs", "2"]
    assert main([*words, "--suite", "swapped,dropped"]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 suites failed: dropped" in captured.err and "swapped finished" in captured.out
    obstacle.rmdir()
    assert main([*words, "--suite", "dropped,scrambled"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("first named") == 2  # one in each table
    for suite in ("swapped", "dropped", "scrambled"):
        for name in (f"{suite}.json", f"{suite}.csv"):
            written = (tmp_path / "evaluation" / name).read_text()
            assert written == (evaluated / "evaluation" / name).read_text()


def test_evaluations_report_it_by_episode_and_family(evaluated: Path) -> None:
    figures = {
        suite: json.loads((evaluated / "evaluation" / f"{suite}.json").read_text())
        for suite in find_suites("controls")
    }
    for suite, content in figures.items():
        with (evaluated / "evaluation" / f"{suite}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        agent = content["agents"]["random"]
        assert content["tasks"]["random"]["pickup"] == agent and agent["episodes"] == len(rows) == 24
        for name in ("first_named", "first_other", "first_none", "first_chance"):
            mean = sum(float(row[name]) for row in rows) / 24
            assert mean == pytest.approx(agent["figures"][name]["value"], abs=1e-6)
    rewards = {suite: content["agents"]["random"]["figures"]["return"]["value"] for suite, content in figures.items()}
    assert rewards["swapped"] == rewards["dropped"] == rewards["scrambled"]  # a non-reading agent acts the same


@THOROUGH
def test_a_study_summarises_it(tmp_path: Path) -> None:
    common = [*_ROOM, "world.num_envs=4", "training.steps=160", "world.num_steps=20"]
    common += ["evaluation.baselines=[]", "world.history=1"]
    arms = {"symbolic": {"experiment": "glam/symbolic"}, "random": {"experiment": "random"}}
    study = {"name": "s", "seeds": [1], "episodes": 24, "suites": ["held-out", "swapped"], "common": common}
    (tmp_path / "s.yaml").write_text(json.dumps(study | {"note": "Mind the gap.", "arms": arms}))
    out = tmp_path / "out"
    words = ["study", str(tmp_path / "s.yaml"), "--runs", str(tmp_path / "runs"), "--output", str(out)]
    assert main(words) == 0
    with (out / "evaluations.csv").open(newline="") as file:
        rows = {(row["arm"], row["suite"], row["task"]): row for row in csv.DictReader(file)}
    evaluation = json.loads((tmp_path / "runs" / "random-seed1" / "evaluation" / "swapped.json").read_text())
    for name in ("first_named", "first_none", "first_precision", "first_chance"):
        written = float(rows["random", "swapped", "all"][name])
        assert written == pytest.approx(evaluation["agents"]["random"]["figures"][name]["value"], abs=1e-5)
    with (out / "curves.csv").open(newline="") as file:
        assert "first_precision" in next(csv.reader(file))
    page = (out / "README.md").read_text()
    assert "Mind the gap." in page and "## The thing first dealt with" in page
    assert "| test | symbolic | random | chance |" in page and (out / "first.svg").exists()


def test_the_report_shows_it(evaluated: Path, tmp_path: Path) -> None:
    assert main(["report", str(evaluated), "--output", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    for text in ("<td>first named</td>", "Original and changed missions", "first object is the named one"):
        assert text in page
    assert "<mark>the " in page and "First interaction: with " in page
    assert "<td>swapped</td>" in page
    assert page.count("<h2>Evaluation") == 1 and "<h2>Evaluations: success</h2>" in page
    (table,) = re.findall("<h2>Evaluations: success</h2>\n<div class=.scroll.><table>(.*?)</table>", page, re.DOTALL)
    agents = json.loads((evaluated / "evaluation" / "swapped.json").read_text())["agents"]
    for agent, one in agents.items():
        success = one["figures"]["success"]
        assert f"<th>{agent}</th>" in table
        assert f"<td>{number(success['value'])}<small>" in table.partition("<td>swapped<small>")[2]
    assert page.count("<summary>All metrics: ") == len(list((evaluated / "evaluation").glob("*.json")))


def test_controls_of_another_world_are_not_compared_with_the_runs(evaluated: Path, tmp_path: Path) -> None:
    run = _without_samples(evaluated, tmp_path / "run")
    for suite in ("swapped", "dropped"):
        path = run / "evaluation" / f"{suite}.json"
        content = json.loads(path.read_text())
        content["world"]["args"]["task" if suite == "swapped" else "control"] = "goto"
        path.write_text(json.dumps(content))
    assert main(["report", str(run), "--output", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    controls = page.partition("Original and changed missions")[2].partition("</section>")[0]
    assert "<td>swapped</td>" not in controls and "<td>dropped</td>" in controls


@pytest.mark.parametrize("suite", ["swapped", "controls"])
def test_a_swapped_mission_needs_a_second_thing(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = [*_ROOM, "world.args.num_dists=0"]
    words = ["evaluate", "random", *room, f"run_dir={tmp_path}", "--suite", suite, "--episodes", "2"]
    assert main(words) == (1 if suite == "swapped" else 0)  # of several suites, the suitable ones are played
    error = capsys.readouterr().err
    assert "suite 'swapped' does not apply to this run" in error and "num_dists=3" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (2.5e-9, -0.226, 0.214, "0.000 -0.226–0.214"),
        (-1e-9, -0.1, 0.1, "0.000 -0.100–0.100"),
        (0.005, 0.0009, 0.028, "0.005 0.001–0.028"),
        (3e-5, 2e-5, 4e-5, "3e-05 2e-05–4e-05"),
        (47, 38.2, 58.1, "47 38.2–58.1"),
    ],
)
def test_figures_have_as_many_decimals_as_their_interval_needs(
    value: float, low: float, high: float, text: str
) -> None:
    assert Figure(value, low, high, 5).text() == text
