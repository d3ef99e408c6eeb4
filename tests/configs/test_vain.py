"""What is given in vain in single keys, each refused in one line."""

from pathlib import Path

import pytest

from groundling.cli import main
from groundling.configs.compose import compose
from groundling.errors import ConfigError


@pytest.mark.parametrize(
    ("experiment", "overrides", "told"),
    [
        (
            "demo",
            ["model.revision=main"],
            "model.revision=main does nothing: model.path=starter-causal is a folder",
        ),
        ("demo", ["name="], "name must be a line"),
        (
            "demo",
            ["reward.env.coefficient=0"],
            "nothing is learnt from: the coefficients of reward.env are all 0",
        ),
        (
            "rl4lms/increasing_numbers_ppo",
            ["model.max_prompt_tokens=9"],
            "model.max_prompt_tokens=9 does nothing: prompts are cut at world.max_prompt_length",
        ),
    ],
)
def test_what_does_nothing_is_told(experiment: str, overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose(experiment, overrides)


def test_a_hub_models_revision_is_used() -> None:
    assert compose("demo", ["model.path=somebody/model", "model.revision=v2"]).model.revision == "v2"


def test_a_refused_run_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "demo-easy", f"run_dir={run}", "policy.id=token", "~policy.args"]) == 1
    assert not run.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_film_is_a_gif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "random", "--gif", str(tmp_path / "film.png")]) == 1
    assert "ends in .gif" in capsys.readouterr().err
