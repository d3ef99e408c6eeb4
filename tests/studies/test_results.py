"""Results of another machine (`--add`)."""

import shutil
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.envs.seeds import SCHEME
from groundling.studies import run as study_module
from tests.studies import STUDY, WRITING, rows_of, study_command
from tests.thorough import THOROUGH, one_in


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
        ours, theirs = rows_of(here / name), rows_of(whole / name)
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
    assert "whole has quick-seed1, random-seed1, slow-seed1, as another folder of --add" in capsys.readouterr().err

    # Before their scheme was written, held-out episodes had other seeds.
    summary = (there / "summary.json").read_text()
    former = summary.replace(f'"episode_seeds": "{SCHEME}",', "")
    (there / "summary.json").write_text(former)
    assert main(words) != 0 and former != summary
    assert "there was tested in other held-out episodes: its episode seeds are None" in capsys.readouterr().err
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
    assert "quick-seed1 of" in (output := capsys.readouterr().out) and "evaluations.csv lacks its held-out" in output
    evaluations.write_text("".join([*lines, lines[1]]))
    assert main([*words[:-1], str(whole), "arms=quick"]) != 0
    assert "twice" in capsys.readouterr().err


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a study next to the results of one of its seeds; not to be changed."""
    path = tmp_path_factory.mktemp("studied") / "tiny.yaml"
    path.write_text(STUDY)
    assert main(study_command(path, "seeds=1")) == 0
    return path


@pytest.mark.parametrize(
    ("change", "words", "message"),
    one_in(
        2,
        [
            (None, ["episodes=5"], "holds results of 'tiny' with 4 episodes, and not of tiny with 5"),
            (None, ["arms.slow.algorithm.args.learning_rate=2e-5"], "slow with algorithm.args.learning_rate=1e-05"),
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
                "success is '5",
            ),
            (("arms/slow.yaml", "seed:", "sead:"), [], "sead"),
            (("evaluations.csv", "quick,1,trained,", "quick,1,<img src=x>,"), [], "agent is '<img src=x>'"),
            (("evaluations.csv", "held-out,all,4", "held-out,=A1,4"), [], "task is '=A1'"),
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


def test_results_are_added_only_where_they_have_an_effect(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(study_command(study, "--add", str(study.parent), "--no-results")) != 0
    assert "--add does nothing with --no-results" in capsys.readouterr().err
    assert main(study_command(study, "--add", str(study.parent))) != 0
    assert "holds no results of a study" in capsys.readouterr().err
    study.write_text(WRITING)
    assert main(study_command(study, "--add", str(study.parent))) != 0
    assert "--add is for studies that report success rates" in capsys.readouterr().err
