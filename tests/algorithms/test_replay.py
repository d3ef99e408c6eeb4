"""What DRRN remembers, in memory and in the run's file."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from groundling.algorithms import DRRN
from groundling.algorithms.replay import ReplayFile, Transition
from groundling.configs.schema import Config, TrainingConfig
from groundling.errors import ConfigError, RunError
from groundling.registry import ComponentConfig
from groundling.training.progress import TrainingProgress
from groundling.training.run import Run
from groundling.worlds.text.config import TextConfig
from tests.conftest import TablePolicy


def _transitions(count: int, first: int = 0) -> list[Transition]:
    sets = (("left", "right"), ("left", "right", "wait"))
    return [
        Transition(f"é {i % 5}\n", sets[i % 2], i % 2, i / 7, None if i % 3 == 2 else f"é {(i + 1) % 5}\n")
        for i in range(first, first + count)
    ]


def test_what_was_appended_comes_back_and_what_a_kill_left_behind_does_not(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    file = ReplayFile(path)
    file.append(_transitions(4))
    state = json.loads(json.dumps(file.state))
    file.append(_transitions(5, first=100))  # and was killed before its checkpoint was whole
    again = ReplayFile(path)
    assert list(again.read(state)) == _transitions(4)
    again.append(_transitions(6, first=4))
    last = again.state
    assert path.stat().st_size == last["bytes"]
    assert list(ReplayFile(path).read(last)) == _transitions(10)
    assert list(ReplayFile(path).read(state)) == _transitions(4)  # an earlier checkpoint
    assert path.read_text(encoding="utf-8").count("\\u00e9 3") == 1  # each text once
    begun_again = ReplayFile(path)
    begun_again.append(_transitions(1))
    assert list(ReplayFile(path).read(begun_again.state)) == _transitions(1)


def test_a_file_that_is_not_the_checkpoints_is_told(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    file = ReplayFile(path)
    with pytest.raises(RunError, match=r"cannot read .*replay\.jsonl"):
        list(file.read({"bytes": 1, "crc32": 0}))
    file.append(_transitions(3))
    path.write_bytes(path.read_bytes().replace(b"wait", b"rest"))
    with pytest.raises(RunError, match="bring it back"):
        list(ReplayFile(path).read(file.state))


def test_a_state_that_holds_all_of_it_is_read(tmp_path: Path) -> None:
    rows = [["a", ["x", "y"], 0, 0.0, "b"], ["b", ["x", "y"], 1, 0.0, "c"], ["c", ["x", "y"], 1, 0.5, None]]
    held = {"rows": rows, "steps": 7}
    expected = [
        Transition("a", ("x", "y"), 0, 0.0, "b"),
        Transition("b", ("x", "y"), 1, 0.0, "c"),
        Transition("c", ("x", "y"), 1, 0.5, None),
    ]
    alone, kept, again = (DRRN(replay_size=3) for _ in range(3))
    for algorithm in (kept, again):
        algorithm.keep_in(tmp_path)
    for algorithm in (alone, kept):
        algorithm.load_state_dict(held)
        assert algorithm._replay == expected
    for algorithm, source in ((again, kept), (DRRN(replay_size=3), alone)):
        algorithm.load_state_dict(json.loads(json.dumps(source.state_dict())))
        assert algorithm._replay == expected and algorithm._steps == 7


def test_drrn_learns_from_its_replay_and_takes_it_up_again(tmp_path: Path) -> None:
    policy, args = {"embedding_size": 8, "hidden_size": 8}, {"batch_size": 8, "steps_per_gradient": 4}
    config = Config(
        name="replay",
        device="cpu",
        world=TextConfig(env="test/Corridor-v0", num_envs=4, actions=["left", "right", "stay"], num_steps=4),
        policy=ComponentConfig("drrn", policy),
        algorithm=ComponentConfig("drrn", {**args, "replay_size": 20}),
        training=TrainingConfig(steps=32),
    )
    run = Run(config, tmp_path, warn=print)
    rows = [run.update(TrainingProgress(Console(quiet=True), 32, 0)) for _ in range(2)]
    assert [row["replay"] for row in rows] == [16, 20]
    assert all(row["grad_norm"] > 0 for row in rows)
    state = json.loads(json.dumps(run.algorithm.state_dict()))
    assert len(json.dumps(state)) < 100  # however much is remembered
    again = DRRN(**args, replay_size=20)
    again.keep_in(tmp_path)
    again.load_state_dict(state)
    assert again.state_dict() == run.algorithm.state_dict() and again._replay == run.algorithm._replay
    with pytest.raises(ConfigError, match=r"policy\.id=drrn"):
        again.setup(TablePolicy())
