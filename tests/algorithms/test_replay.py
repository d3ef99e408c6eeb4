"""DRRN's replay memory, and its file in a run's folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from groundling.algorithms import DRRN
from groundling.algorithms.replay import ReplayFile, ReplayMemory, Transition
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


def test_the_file_is_read_up_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    file = ReplayFile(path)
    file.append(_transitions(4))
    state = json.loads(json.dumps(file.state))
    file.append(_transitions(5, first=100))  # after the checkpoint, as by a killed run
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


def test_links_are_not_followed(tmp_path: Path) -> None:
    private = tmp_path / "private.txt"
    private.write_text("mine")
    (tmp_path / "replay.jsonl").symlink_to(private)
    with pytest.raises(RunError, match="is a link"):
        ReplayFile(tmp_path / "replay.jsonl").append(_transitions(1))
    assert private.read_text() == "mine"


class _Table(DRRNPolicy):
    """One Q value for each action, independent of the prompt."""

    def __init__(self, values: Mapping[str, float]) -> None:
        nn.Module.__init__(self)
        self.rows = nn.ParameterDict({name: nn.Parameter(torch.tensor(q)) for name, q in values.items()})

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def q_values(self, prompts: Sequence[str], actions: Sequence[Sequence[str]]) -> torch.Tensor:
        return torch.stack([torch.stack([self.rows[name] for name in texts]) for texts in actions])


def test_the_next_value_is_that_of_the_best_admissible_action() -> None:
    """At the second step "take" is not admissible any more."""
    policy = _Table({"take": 9.0, "wait": 0.0, "open": 2.0, "go": 1.0})
    drrn = DRRN(gamma=0.5, learning_rate=1e-9)
    drrn.setup(policy)
    step = Transition("s", ("take", "wait"), 1, 1.0, "t", ("open", "go"))
    # Q(s, wait) = 0 and the target is 1 + 0.5 * 2: Huber's loss of 2 is 1.5.
    assert drrn._step(policy, [step, step])["loss"] == pytest.approx(1.5)


def test_another_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    file = ReplayFile(path)
    with pytest.raises(RunError, match=r"cannot read .*replay\.jsonl"):
        list(file.read({"bytes": 1, "crc32": 0}))
    file.append(_transitions(3))
    path.write_bytes(path.read_bytes().replace(b"wait", b"rest"))
    with pytest.raises(RunError, match="restore that file"):
        list(ReplayFile(path).read(file.state))


def test_a_full_memory_is_restored_in_its_order(tmp_path: Path) -> None:
    memory, again = ReplayMemory(5), ReplayMemory(5)
    for one in (memory, again):
        one.keep_file(tmp_path / "replay.jsonl")
    for transition in _transitions(7):
        memory.add(transition)
    again.load(json.loads(json.dumps(memory.save())))
    expected = [*_transitions(2, first=5), *_transitions(3, first=2)]
    assert [*again] == [*memory] == expected
    for one in (memory, again):
        one.add(_transitions(1, first=7)[0])
    assert [*again] == [*memory]


def test_saving_needs_a_folder() -> None:
    with pytest.raises(RunError, match=r"use_folder\(folder\)"):
        DRRN().state_dict()


def test_drrn_learns_from_its_replay_memory_and_restores_it(tmp_path: Path) -> None:
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
    again.use_folder(tmp_path)
    again.load_state_dict(state)
    assert again.state_dict() == run.algorithm.state_dict() and [*again.replay] == [*run.algorithm.replay]
    with pytest.raises(ConfigError, match=r"policy\.id=drrn"):
        again.setup(TablePolicy())
