"""Runs that were created with a user's module and are used without it."""

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from markupsafe import escape

import groundling as gl
from groundling.cli.main import main
from groundling.config.compose import compose, from_values, to_yaml
from groundling.errors import ConfigError
from groundling.reports.page import write_report
from groundling.reports.run_folder import read_run

_ID, _WORDS = "test/OfMine-v0", "--import my_module"


class Mine(gymnasium.Env[str, int]):
    observation_space, action_space = gymnasium.spaces.Text(99), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return "  a map\n x", {"goal": "leave", "actions": ["go", "stay"]}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return "  a map\n x", 1.0, self.steps == 2, False, {"actions": ["go", "stay"], "won": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A trained and evaluated run whose env is no longer registered."""
    folder = tmp_path_factory.mktemp("own") / "a $run's"
    gymnasium.register(_ID, entry_point=Mine)
    sizes = ["world.num_envs=2", "world.num_steps=2", "training.steps=4", "evaluation.episodes=2"]
    words = [f"world.env={_ID}", "~world.args", "model.path=starter", f"run_dir={json.dumps(str(folder))}"]
    with redirect_stdout(StringIO()) as printed:
        assert main(["train", "demo", *words, *sizes, "evaluation.baselines=[]"]) == 0
    assert f"done; to evaluate it, run: {shlex.join(['groundling', 'evaluate', str(folder)])}\n" in printed.getvalue()
    assert main(["evaluate", str(folder)]) == 0
    settings = folder / "config.yaml"
    settings.write_text(settings.read_text().replace("imports: []", "imports: [my_module]"))
    del gymnasium.registry[_ID]
    yield folder


def test_recorded_episodes_are_shown(run: Path, tmp_path: Path) -> None:
    (suite,) = read_run(run).episodes().values()
    assert [list(moment.lines) for moment in suite[0].frames] == [["  a map", " x"]] * 2
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "<li>  a map</li>" in page and _ID in page
    again = shlex.join(["groundling", "train", f"{run.name}/config.yaml", *_WORDS.split(), "run_dir=NEW"])
    assert f"<code>{escape(again)}</code>" in page


def test_a_folder_whose_name_is_not_utf8_has_a_report(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    shutil.copytree(run, folder)
    assert "?/config.yaml</summary>" in write_report([folder], tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "words", [["evaluate"], ["watch"], ["collect"], ["publish"], ["train"]], ids=lambda words: words[0]
)
def test_a_command_that_needs_the_env_names_the_module(
    words: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = words
    name = str(run / "config.yaml") if command == "train" else str(run)
    more = ["--output", str(tmp_path / "out")] if command in ("collect", "publish") else []
    more += ["--episodes", "2"] if command == "collect" else []
    assert main([command, name, *more]) == 1
    error = capsys.readouterr().err
    assert error.count(_WORDS) == 1 and "BabyAI" not in error


def test_an_agent_acts_without_the_env(run: Path) -> None:
    agent = gl.load(run)
    assert agent.act("  a map\n x", {"goal": "leave", "actions": ["go", "stay"]}) in ("go", "stay")
    assert agent.probabilities is not None and agent.probabilities.keys() == {"go", "stay"}
    assert gl.Run(run).agent().name == agent.name
    with pytest.raises(ConfigError, match=f"unknown env '{_ID}'"):
        agent.make_env()


def test_missing_components_of_a_policy_name_the_module(run: Path, tmp_path: Path) -> None:
    settings = (run / "config.yaml").read_text()
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoints").symlink_to(run / "checkpoints")
    for key, old, new in (("prompt", "prompt: brief", "prompt: mine"), ("policy", "id: action_", "id: mine_")):
        changed = settings.replace(old, new)
        assert changed != settings, key
        (other / "config.yaml").write_text(changed)
        with pytest.raises(ConfigError, match=_WORDS):
            gl.load(other)
        assert read_run(other).task == _ID


def test_a_run_with_an_own_online_judge_is_shown_without_its_module() -> None:
    part = "reward.reward_model.args={threshold_quantile: 0, online: {judge: rules}}"
    config = compose("text", ["world.env=BabyAI-GoToLocal-v0", "model.path=starter", part])
    values = yaml.safe_load(to_yaml(config).replace("judge: rules", "judge: digits"))
    values["imports"] = ["mytaste"]
    assert from_values(values, purpose="showing").reward["reward_model"].args["online"]["judge"] == "digits"
    with pytest.raises(ConfigError, match=r"unknown judge 'digits'.*--import mytaste"):
        from_values(values)
