"""DRRN's replay memory and its file in the run's folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from groundling.algorithms import DRRN
from groundling.algorithms.drrn import ReplayedStep, ReplayMemory
from groundling.config.schema import Config, TrainingConfig
from groundling.errors import RunError
from groundling.policies.drrn import DRRNPolicy
from groundling.registry import ComponentConfig
from groundling.training.tracking import TrainingProgress
from groundling.training.trainer import Trainer
from groundling.worlds.text.config import TextConfig, TextEvaluation


def _transitions(count: int, first: int = 0) -> list[ReplayedStep]:
    sets = (("left", "right"), ("left", "right", "wait"))
    return [
        ReplayedStep(
            *(f"é {i % 5}\n", sets[i % 2], i % 2, i / 7),
            *(() if i % 3 == 2 else (f"é {(i + 1) % 5}\n", sets[(i + 1) % 2])),
        )
        for i in range(first, first + count)
    ]


def _memory(path: Path, count: int = 0, first: int = 0, size: int = 100) -> ReplayMemory:
    memory = ReplayMemory(size)
    memory.keep_file(path)
    _add(memory, count, first)
    return memory


def _add(memory: ReplayMemory, count: int, first: int = 0) -> None:
    for transition in _transitions(count, first):
        memory.add(transition)


def _read(path: Path, state: dict[str, int]) -> list[ReplayedStep]:
    memory = _memory(path)
    memory.load(state)
    return [*memory]


def test_the_file_is_read_up_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    memory = _memory(path, 4)
    state = json.loads(json.dumps(memory.save()))
    _add(memory, 5, first=100)
    memory.save()  # after the checkpoint, as in a run that is killed
    again = _memory(path)
    again.load(state)
    assert [*again] == _transitions(4)
    _add(again, 6, first=4)
    last = again.save()
    assert path.stat().st_size == last["bytes"]
    assert _read(path, last) == _transitions(10)
    assert _read(path, state) == _transitions(4)  # an earlier checkpoint
    assert path.read_text(encoding="utf-8").count("\\u00e9 3") == 1  # each text is stored once
    assert _read(path, _memory(path, 1).save()) == _transitions(1)


def test_links_are_not_followed(tmp_path: Path) -> None:
    private = tmp_path / "private.txt"
    private.write_text("mine")
    (tmp_path / "replay.jsonl").symlink_to(private)
    with pytest.raises(RunError, match="is a symbolic link"):
        _memory(tmp_path / "replay.jsonl", 1).save()
    assert private.read_text() == "mine"


class _Table(DRRNPolicy):
    """One Q value for each action, which does not depend on the prompt."""

    def __init__(self, values: Mapping[str, float]) -> None:
        nn.Module.__init__(self)
        self.rows = nn.ParameterDict({name: nn.Parameter(torch.tensor(q)) for name, q in values.items()})

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def q_values(self, prompts: Sequence[str], actions: Sequence[Sequence[str]]) -> torch.Tensor:
        return torch.stack([torch.stack([self.rows[name] for name in texts]) for texts in actions])


def test_the_next_value_is_that_of_the_best_admissible_action() -> None:
    """At the second step, "take" is no longer admissible."""
    policy = _Table({"take": 9.0, "wait": 0.0, "open": 2.0, "go": 1.0})
    drrn = DRRN(gamma=0.5, learning_rate=1e-9)
    drrn.setup(policy)
    step = ReplayedStep("s", ("take", "wait"), 1, 1.0, "t", ("open", "go"))
    # Q(s, wait) = 0 and the target is 1 + 0.5 * 2, so Huber's loss of 2 is 1.5.
    assert drrn._step(policy, [step, step])["loss"] == pytest.approx(1.5)


def test_another_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "replay.jsonl"
    with pytest.raises(RunError, match=r"cannot read .*replay\.jsonl"):
        _read(path, {"bytes": 1, "crc32": 0})
    state = _memory(path, 3).save()
    path.write_bytes(path.read_bytes().replace(b"wait", b"rest"))
    with pytest.raises(RunError, match="restore the original file"):
        _read(path, state)


def test_a_full_memory_is_restored_in_its_order(tmp_path: Path) -> None:
    memory, again = (_memory(tmp_path / "replay.jsonl", size=5) for _ in range(2))
    _add(memory, 7)
    again.load(json.loads(json.dumps(memory.save())))
    expected = [*_transitions(2, first=5), *_transitions(3, first=2)]
    assert [*again] == [*memory] == expected
    for one in (memory, again):
        _add(one, 1, first=7)
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
        policy=ComponentConfig(id="drrn", args=policy),
        algorithm=ComponentConfig(id="drrn", args={**args, "replay_size": 20}),
        training=TrainingConfig(steps=32),
        evaluation=TextEvaluation(),
    )
    run = Trainer(config, tmp_path, warn=print)
    rows = [run.update(TrainingProgress(Console(quiet=True), 32, 0)) for _ in range(2)]
    assert [row["replay"] for row in rows] == [16, 20]
    assert all(row["grad_norm"] > 0 for row in rows)
    state = json.loads(json.dumps(run.algorithm.state_dict()))
    assert len(json.dumps(state)) < 100  # however many transitions are stored
    again = DRRN(**args, replay_size=20)
    again.use_folder(tmp_path)
    again.load_state_dict(state)
    assert again.state_dict() == run.algorithm.state_dict() and [*again.replay] == [*run.algorithm.replay]
