"""Keys that configs had before their sections were chosen by the kind of world: each is refused with its new name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from groundling.cli.main import main
from groundling.config.compose import compose, to_yaml

_TEXT, _NETHACK, _WRITING = "demo-easy", "motif/score", "rl4lms/increasing_numbers_ppo"
_RENAMED: list[tuple[str, str, Any, str]] = [
    (_TEXT, "env.id", "BabyAI-GoToObj-v0", "world.env"),
    (_TEXT, "env.args", {"num_dists": 2}, "world.args"),
    (_TEXT, "env.num_envs", 3, "world.num_envs"),
    (_WRITING, "env.num_envs", 3, "world.num_texts"),
    (_TEXT, "env.history", 2, "world.history"),
    (_NETHACK, "nethack.num_workers", 0, "world.num_workers"),
    (_NETHACK, "nethack.ahead", False, "world.ahead"),
    (_TEXT, "data.path", "demonstrations", "world.dataset"),
    (_WRITING, "pool.id", "imdb", "world.pool"),
    (_WRITING, "pool.args", {"n_samples": 3}, "world.args"),
    (_WRITING, "pool.texts_per_prompt", 2, "world.texts_per_prompt"),
    (_TEXT, "training.steps_per_update", 4, "world.num_steps"),
    (_WRITING, "training.steps_per_update", 4, "world.num_tokens"),
    (_TEXT, "training.probes", 1, "world.probes"),
    (_TEXT, "training.entropy_floor", 0, "world.entropy_floor"),
]
"""An experiment of the kind of world that had a key, the key, a value that it had, and what it is now."""
_CASES = pytest.mark.parametrize(("experiment", "old", "value", "new"), _RENAMED)


def _nested(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return {section: {name: value}}


def _refused(capsys: pytest.CaptureFixture[str], old: str, new: str, words: list[str]) -> str:
    """The one line that refuses an old key."""
    capsys.readouterr()
    assert main(["train", *words, "--dry-run"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    assert old in error and new in error, error
    return error


@_CASES
def test_a_runs_file_is_told_the_new_name(
    experiment: str, old: str, value: Any, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(to_yaml(compose(experiment)))
    section, name = old.split(".")
    values.setdefault(section, {})[name] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    assert str(path) in _refused(capsys, old, new, [str(path)])


@_CASES
def test_an_experiment_of_ones_own_is_told_the_new_name(
    experiment: str, old: str, value: Any, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "experiment" / "own.yaml"
    path.parent.mkdir()
    settings = {"defaults": [experiment, "_self_"], "name": "own", **_nested(old, value)}
    path.write_text("# @package _global_\n" + yaml.safe_dump(settings))
    assert "own.yaml" in _refused(capsys, old, new, ["own", "--config-dir", str(tmp_path)])


@_CASES
def test_the_command_line_is_told_the_new_name(
    experiment: str, old: str, value: Any, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml_value = yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]
    section, name = old.split(".")
    for word in (f"{old}={yaml_value}", f"{section}={{{name}: {yaml_value}}}"):
        _refused(capsys, old, new, [experiment, word])
    if isinstance(value, dict):
        (key,) = value
        _refused(capsys, f"{old}.{key}", f"{new}.{key}", [experiment, f"{old}.{key}=1"])
        _refused(capsys, old, new, [experiment, f"~{old}"])


def test_prompts_of_texts_are_the_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was TextGeneration-v0's arguments."""
    for name in ("max_prompt_length", "prompt_truncation_side"):
        _refused(capsys, f"env.args.{name}", f"world.{name}", [_WRITING, f"env.args.{name}=1"])


def test_a_run_of_before_is_told_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its whole file, which has no section world, as it was written."""
    path = tmp_path / "config.yaml"
    before = {
        "name": "demo",
        "seed": 1,
        "env": {"id": "BabyAI-GoToObj-v0", "args": {}, "num_envs": 4},
        "nethack": {"num_workers": 0, "ahead": False},
        "data": {"path": None},
        "pool": {"id": None, "args": {}, "texts_per_prompt": 1, "replacement": True},
        "training": {"steps": 100, "steps_per_update": 4, "probes": None},
    }
    path.write_text(yaml.safe_dump(before))
    _refused(capsys, "env.id", "world.env", [str(path)])


def test_a_study_is_told_the_new_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.yaml"
    arms = {"a": {"experiment": _TEXT, "overrides": ["env.num_envs=2"]}}
    path.write_text(yaml.safe_dump({"name": "s", "arms": arms}))
    assert main(["study", str(path), "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert "env.num_envs" in error and "world.num_envs" in error
