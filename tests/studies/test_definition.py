"""Study files and command-line settings."""

from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.studies.definition import read_study, studies
from groundling.studies.run import make_jobs
from tests.studies import STUDY, WRITING, study_command
from tests.thorough import one_in


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STUDY.replace("reference: quick", "reference: quik"), "unknown arm 'quik'"),
        (STUDY.replace("reference: quick", "reference: random"), "the reference random is not trained"),
        (
            WRITING.replace('metrics=[]"]', 'metrics=[]"], suites: [val]'),
            "use the same first suite for all arms, not test, val",
        ),
    ],
)
def test_settings_without_effect_on_results_are_refused(
    text: str, message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(text)
    assert main(study_command(study)) != 0
    assert message in capsys.readouterr().err
    assert not (study.parent / "runs").exists()


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
def test_mistakes_are_reported_in_one_line_before_anything_runs(
    settings: list[str], message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(study_command(study, *settings)) == 1
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
        ("name: tiny", "name: ../tiny", "got '../tiny'"),
        ("  slow:", "  /slow:", "got '/slow'"),
        ("seeds: [1, 2]", "seeds: [1, 1]", "seeds must be distinct non-negative integers, as in 1,2,3, got [1, 1]"),
        ("episodes: 4", "episodes: 0", "episodes must be at least 1, got 0"),
        ("common:", "common:\n  - training.epochs=7", "training.epochs=7, but none of its arms uses it"),
    ],
)
def test_wrong_files_are_reported_in_one_line(
    wrong: str, right: str, message: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY.replace(wrong, right))
    assert main(study_command(study)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


@pytest.mark.parametrize("name", one_in(4, sorted(studies())))
def test_a_bundled_study_can_be_composed(name: str, tmp_path: Path) -> None:
    study, arms = read_study(name)
    jobs = make_jobs(study, arms, tmp_path)
    assert len(jobs) == sum(len(arm.seeds or study.seeds) for arm in arms.values()) and study.name == name


def test_an_unknown_study_is_reported_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "glam-study" in studies()
    assert main(["study", "glam-studi"]) == 1
    assert "glam-study" in capsys.readouterr().err


def test_an_arm_may_have_fewer_seeds(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = STUDY.replace("  slow:\n", "  slow:\n    seeds: [2]\n")
    study.write_text(text)
    spec, arms = read_study(str(study))
    names = [job.name for job in make_jobs(spec, arms, study.parent / "runs")]
    assert names == ["quick-seed1", "random-seed1", "quick-seed2", "slow-seed2", "random-seed2"]
    assert main(study_command(study, "arms=slow", "seeds=1")) != 0
    assert "none of the seeds [1] apply to slow" in capsys.readouterr().err
    study.write_text(text.replace("seeds: [2]", "seeds: [2, 7]"))
    assert main(study_command(study)) != 0
    assert "arms.slow.seeds: [7] are not among the study's seeds: choose from [1, 2]" in capsys.readouterr().err
