"""Envs named as MODULE:NAME on the command line."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gymnasium
import pytest

from groundling.cli.main import main
from groundling.config.compose import from_file
from groundling.envs.checking import check_env
from groundling.registry import imported_modules
from tests.envs.test_objects import Plain
from tests.runs import error_of

_MODULE = """
from pathlib import Path
from typing import Any
import gymnasium
from tests.envs.test_objects import Plain
Path("imported").touch()
class Named(Plain):
    action_names = ("stay", "go")
class Made(Named): ...
class Whole(Named): ...
gymnasium.register("Registered-v0", entry_point=Named)
def make() -> Any:
    return Made(4)
env = Whole(5)
def polite(completions: list[str]) -> list[float]:
    return [0.0 for _ in completions]
"""
_SMALL = ["training.steps=4", "world.num_envs=2", "world.num_steps=2", "evaluation.episodes=1", "device=cpu"]


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_envs.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    before, path = [*imported_modules], [*sys.path]
    yield
    sys.modules.pop("users_envs", None)
    imported_modules[:] = before
    sys.path[:] = path
    for id in ("Named-v0", "make-v0", "Whole-v0", "Registered-v0"):
        gymnasium.registry.pop(id, None)


@pytest.mark.parametrize(
    ("name", "id", "module"),
    [
        ("Named", "Named-v0", "users_envs:Named"),
        ("make", "make-v0", "users_envs:make"),
        ("env", "Whole-v0", "users_envs:env"),
        ("Registered-v0", "Registered-v0", "users_envs"),
    ],
)
def test_a_run_and_its_evaluation(
    name: str, id: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "text", f"world.env=users_envs:{name}", "model.path=starter", "run_dir=run", *_SMALL]
    assert main(words) == 0
    assert f"groundling evaluate run --import {module}\n" in capsys.readouterr().out
    config = from_file(Path("run/config.yaml"), purpose="showing")
    assert (config.world.env, config.imports) == (id, [module])  # type: ignore[attr-defined]
    assert main([*words, "training.steps=8"]) == 0  # resumes
    del gymnasium.registry[id], sys.modules["users_envs"]
    imported_modules.clear()
    Path("imported").unlink()
    assert f"add --import {module}" in error_of(["evaluate", "run"], capsys)
    assert not Path("imported").exists()  # a run, which may be another's, imports nothing
    assert main(["evaluate", "run", "evaluation.baselines=[]", "--import", module]) == 0


@pytest.mark.parametrize("name", ["Named", "make", "env"])
def test_each_can_be_checked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", f"users_envs:{name}", "--episodes", "2"]) == 0
    assert "the same seed produced the same episode every time" in " ".join(capsys.readouterr().out.split())


def test_objects_can_be_checked_in_python() -> None:
    for made in (Plain, Plain(3), partial(Plain, 3)):
        assert len(check_env(made, num_episodes=2).episodes) == 2
    gymnasium.registry.pop("Plain-v0", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_envs:Name", "users_envs neither defines Name nor registers an env with this id: did you mean 'Named'"),
        ("users_envs:polite", "polite() missing 1 required positional argument"),
        ("users_envs.py:Named", "pass MODULE:NAME instead, as in users_envs:Named"),
        ("nowhere:Named", "there is no module nowhere"),
    ],
)
def test_mistakes(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_of(["train", "text", f"world.env={name}", "model.path=starter", *_SMALL], capsys)


def test_a_file_cannot_name_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "text", "world.env=users_envs:Named", "model.path=starter", "run_dir=run", *_SMALL]) == 0
    del gymnasium.registry["Named-v0"], sys.modules["users_envs"]
    Path("imported").unlink()
    text = Path("run/config.yaml").read_text().replace("env: Named-v0", "env: users_envs:Named")
    assert "users_envs:Named" in text
    Path("run/config.yaml").write_text(text)
    for words in (["train", "run/config.yaml", "run_dir=other"], ["evaluate", "run"]):
        assert "unknown env 'users_envs:Named'" in error_of(words, capsys)
    assert not Path("imported").exists()
