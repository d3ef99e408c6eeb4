"""Success in worlds whose env reports it under a different key, or not at all."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from groundling.cli.main import main
from groundling.envs.vector import TextVectorEnv


class StepCost(gymnasium.Env[str, int]):
    """Three steps with reward -1; every episode succeeds, which only the last info states, under ``key``."""

    observation_space, action_space = gymnasium.spaces.Text(99), gymnasium.spaces.Discrete(2)

    def __init__(self, key: str | None = "won") -> None:
        self.key = key

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return "a room", {"goal": "leave", "actions": ["a", "b"]}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"actions": ["a", "b"]}
        if self.steps == 3 and self.key is not None:
            info[self.key] = True
        return "a room", -1.0, self.steps == 3, False, info


gymnasium.register("test/StepCost-v0", entry_point=StepCost)


def _evaluate(folder: Path, key: str | None) -> dict[str, Any]:
    words = ["world.env=test/StepCost-v0", f"world.args={{key: {key or 'null'}}}", f"run_dir={folder}"]
    assert main(["evaluate", "random", *words, "--episodes", "4", "evaluation.num_envs=2"]) == 0
    content: dict[str, Any] = json.loads((folder / "evaluation" / "held-out.json").read_text())
    return content


def test_an_episode_won_under_a_step_cost_is_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = _evaluate(tmp_path, "won")
    assert content["agents"]["random"]["figures"]["success"]["value"] == 1.0
    assert "notes" not in content and "warning" not in capsys.readouterr().err


def test_the_rule_of_the_last_reward_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = _evaluate(tmp_path, None)
    assert content["agents"]["random"]["figures"]["success"]["value"] == 0.0
    (note,) = content["notes"]
    assert "4 of 4 episodes" in note and "is_success" in note
    assert capsys.readouterr().err.count("ended them with a positive reward") == 1


def test_training_and_datasets_count_as_the_evaluation_does(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    words = ["world.env=test/StepCost-v0", "--episodes", "4", "--output", str(tmp_path / "data")]
    assert main(["collect", "random", *words]) == 0
    rows = [row for file in (tmp_path / "data").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert {row["success"] for row in rows} == {True}
    envs = TextVectorEnv.make("test/StepCost-v0", 2)
    envs.reset()
    episodes = [episode for _ in range(6) for episode in envs.step([0, 0]).episodes]  # as counted in training
    assert [(one.success, one.success_key) for one in episodes] == [(True, "won")] * 4
