"""The worlds that a server offers, and a folder to publish one."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import tests.envs.echo  # noqa: F401  (registers envs)
from groundling.cli.main import main
from groundling.envs.babyai_text import CONTROLS
from groundling.envs.bundled import ENGINES, WORDS
from groundling.errors import ConfigError
from groundling.serving.openenv_folder import write_folder
from groundling.serving.text_worlds import served_worlds

LEVEL = "BabyAI-MixedTrainLocal-v0"


def test_suites_that_change_what_an_agent_reads_are_served() -> None:
    worlds = served_worlds(LEVEL, ["world.args={task: goto}", "world.step_limit=9"])
    assert {None, *CONTROLS, "unseen-objects", "invented-words", "synonym-actions", "french"} <= {*worlds}
    assert not {name for name in worlds if name is not None and name.startswith(("held-out", "form-", "introduction"))}
    assert worlds["swapped"].config.args == {"task": "goto", "control": "swapped"}
    assert {one.config.step_limit for one in worlds.values()} == {9}
    assert worlds["invented-words"].reads("the red key") == "the faze dax"
    assert worlds[None].reads("the red key") == "the red key"


def test_suites_of_other_envs_are_not_served() -> None:
    assert [*served_worlds("test/Echo-v0")] == [None, "dropped", "scrambled"]


@pytest.mark.parametrize(
    ("env", "overrides", "message"),
    [
        (LEVEL, ["world.num_envs=8"], "world.num_envs=8 does not apply to a served world: expected world.args, "),
        (LEVEL, ["policy.id=drrn"], "policy.id=drrn does not apply"),
        (LEVEL, ["world.args={task: fly}"], "fly"),
        ("BabyAI-Nowhere-v0", [], "unknown env 'BabyAI-Nowhere-v0'"),
        ("CartPole-v1", [], "CartPole-v1 is not a text env"),
    ],
)
def test_what_cannot_be_served(env: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        served_worlds(env, overrides)


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parrot.py").write_text(
        "import gymnasium\nfrom tests.envs.echo import Echo\ngymnasium.register('Parrot-v0', entry_point=Echo)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    __import__("parrot")
    folder = tmp_path / "env"
    write_folder(folder, "Parrot-v0", ["world.goal='say it'"], ["parrot"], 3)
    assert yaml.safe_load((folder / "openenv.yaml").read_text())["app"] == "server.app:app"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "openenv-parrot_v0" and project["tool"]["setuptools"]["py-modules"] == [
        "parrot"
    ]
    calls = [ast.unparse(node) for node in ast.walk(ast.parse((folder / "server/app.py").read_text()))]
    assert """make_app('Parrot-v0', ["world.goal='say it'"], max_sessions=3)""" in calls and "import parrot" in calls
    assert (folder / "parrot.py").read_text() == (tmp_path / "parrot.py").read_text()
    needed = ("README.md", "Dockerfile", "client.py", "__init__.py", "server/__init__.py")  # for `openenv push`
    assert all((folder / name).is_file() for name in needed)
    with pytest.raises(ConfigError, match="already exists"):
        write_folder(folder, "Parrot-v0", [], [], 3)
    with pytest.raises(ConfigError, match="--import tests cannot be copied, since it is not one file"):
        write_folder(tmp_path / "other", "Parrot-v0", [], ["tests"], 3)


@pytest.mark.parametrize("id", [*ENGINES, next(iter(WORDS)), "BabyAI-GoToLocal-v0"])
def test_a_folder_installs_the_engine(id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groundling.serving.openenv_folder.served_worlds", lambda env, overrides: {})
    write_folder(tmp_path / "env", id, [], [], 3)
    (needed,) = tomllib.loads((tmp_path / "env" / "pyproject.toml").read_text())["project"]["dependencies"]
    extras = {*re.findall(r"[\w-]+", needed.partition("[")[2].partition("]")[0])}
    known = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert extras <= known.keys() and len(extras) == (1 if id.startswith("BabyAI") else 2)
    has_java = "jre" in (tmp_path / "env" / "Dockerfile").read_text()
    assert has_java == (id in ("ScienceWorld-v0", "TextWorldExpress-v0"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "env", "--port", "1"], "--port has no effect with --output"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is open to other machines: require a token"),
        (["--token-env", "NO_SUCH_TOKEN"], "the environment variable NO_SUCH_TOKEN is not set"),
    ],
)
def test_options(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(__import__("sys").modules, "groundling.serving.openenv", type("Fake", (), {"make_app": None}))
    assert main(["serve-env", LEVEL, *words]) == 1
    assert message in capsys.readouterr().err


def test_openenv_is_named_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve-env", LEVEL]) == 1
    assert "pip install 'groundling[openenv]'" in capsys.readouterr().err
