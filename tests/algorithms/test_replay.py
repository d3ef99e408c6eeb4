"""What DRRN remembers, in memory and in the run's file."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from groundling.algorithms import DRRN
from groundling.algorithms.replay import ReplayFile, Transition
from groundling.config.schema import Config, TrainingConfig
from groundling.errors import ConfigError, RunError
from groundling.policies.drrn import DRRNPolicy
from groundling.registry import ComponentConfig
from groundling.training.progress import TrainingProgress
from groundling.training.trainer import Trainer
from groundling.worlds.text.config import TextConfig
from tests.conftest import TablePolicy


def _transitions(count: int, first: int = 0) -> list[Transition]:
    sets = (("left", "right"), ("left", "right", "wait"))
    return [
        Transition(
            *(f"é {i % 5}\n", sets[i % 2], i % 2, i / 7),
            *(() if i % 3 == 2 else (f"é {(i + 1) % 5}\n", sets[(i + 1) % 2])),
        )
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


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    private = tmp_path / "private.txt"
    private.write_text("mine")
    (tmp_path / "replay.jsonl").symlink_to(private)
    with pytest.raises(RunError, match="is a link"):
        ReplayFile(tmp_path / "replay.jsonl").append(_transitions(1))
    assert private.read_text() == "mine"


def test_what_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    content = b'["a", ["x", "y"], 0, 0.5, "b"]\n[2, 1, 1, 1.0, null]\n'
    path.write_bytes(content)
    file = ReplayFile(path)
    expected = [Transition("a", ("x", "y"), 0, 0.5, "b", ("x", "y")), Transition("b", ("x", "y"), 1, 1.0)]
    assert list(file.read({"bytes": len(content), "crc32": zlib.crc32(content)})) == expected
    file.append(_transitions(2))
    assert list(ReplayFile(path).read(file.state)) == expected + _transitions(2)


class _Table(DRRNPolicy):
    """Q of an action is a number of its own, whatever the prompt."""

    def __init__(self, values: Mapping[str, float]) -> None:
        nn.Module.__init__(self)
        self.rows = nn.ParameterDict({name: nn.Parameter(torch.tensor(q)) for name, q in values.items()})

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def q_values(self, prompts: Sequence[str], actions: Sequence[Sequence[str]]) -> torch.Tensor:
        return torch.stack([torch.stack([self.rows[name] for name in texts]) for texts in actions])


def test_the_next_value_is_the_best_of_the_actions_that_are_admissible_then() -> None:
    """At the second step "take" cannot be done any more: its Q must not enter the target."""
    policy = _Table({"take": 9.0, "wait": 0.0, "open": 2.0, "go": 1.0})
    drrn = DRRN(gamma=0.5, learning_rate=1e-9)
    drrn.setup(policy)
    step = Transition("s", ("take", "wait"), 1, 1.0, "t", ("open", "go"))
    # Q(s, wait) = 0 and the target is 1 + 0.5 * 2: Huber's loss of 2 is 1.5.
    assert drrn._step(policy, [step, step])["loss"] == pytest.approx(1.5)


def test_a_file_that_is_not_the_checkpoints_is_told(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    file = ReplayFile(path)
    with pytest.raises(RunError, match=r"cannot read .*replay\.jsonl"):
        list(file.read({"bytes": 1, "crc32": 0}))
    file.append(_transitions(3))
    path.write_bytes(path.read_bytes().replace(b"wait", b"rest"))
    with pytest.raises(RunError, match="bring that file back"):
        list(ReplayFile(path).read(file.state))


def test_a_state_that_holds_all_of_it_is_read(tmp_path: Path) -> None:
    rows = [["a", ["x", "y"], 0, 0.0, "b"], ["b", ["x", "y"], 1, 0.0, "c"], ["c", ["x", "y"], 1, 0.5, None]]
    held = {"rows": rows, "steps": 7}
    expected = [
        Transition("a", ("x", "y"), 0, 0.0, "b", ("x", "y")),  # of a time when the next ones were not kept
        Transition("b", ("x", "y"), 1, 0.0, "c", ("x", "y")),
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


def test_a_full_memory_without_a_file_comes_back_in_its_order() -> None:
    drrn, again = DRRN(replay_size=5), DRRN(replay_size=5)
    for transition in _transitions(7):
        drrn._add(transition)
    again.load_state_dict(json.loads(json.dumps(drrn.state_dict())))
    assert again._replay == drrn._replay == [*_transitions(2, first=5), *_transitions(3, first=2)]
    for algorithm in (drrn, again):
        algorithm._add(_transitions(1, first=7)[0])
    assert again._replay == drrn._replay


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
    run = Trainer(config, tmp_path, warn=print)
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
