"""Training with several processes equals training with one, and ends if a process dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

from groundling.algorithms.rollout import micro_batches
from groundling.cli.main import main
from groundling.errors import RunError
from groundling.policies import Work
from groundling.runtime.processes import Processes
from groundling.training.tracking import read_metrics
from tests.launching import groundling
from tests.runs import TIME_KEYS
from tests.thorough import THOROUGH, thorough

_SMALL = [
    *("world.num_envs=5", "world.num_steps=8", "algorithm.args.minibatch_size=15", "device=cpu"),  # uneven shares
    # Adam amplifies rounding, and with some seeds a ReLU is at its kink. The schedule must not depend on the length.
    *("algorithm.args.learning_rate_schedule=constant", "algorithm.args.learning_rate=1e-4", "seed=3"),
]


def _words(run_dir: Path, *overrides: str, experiment: str = "demo-easy") -> list[str]:
    small = _SMALL if experiment == "demo-easy" else ["device=cpu"]
    return ["train", experiment, f"run_dir={run_dir}", *small, *overrides]


def _start(words: list[str]) -> subprocess.Popen[str]:
    """Start two processes with torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "groundling"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *launcher, *words], env=environment, **pipes)


def _train(words: list[str]) -> None:
    child = _start(words)
    output, _ = child.communicate(timeout=300)
    assert child.returncode == 0, output
    assert output.count("done; to evaluate") == 1  # only the main process prints
    assert "runloop" not in output, output


def _train_forked(words: list[str], processes: int = 2) -> None:
    """Train in processes that share this process's imports."""
    ended = groundling(processes, *words)
    assert [process.exit_code for process in ended] == [0] * processes, ended
    assert "".join(process.output for process in ended).count("done; to evaluate") == 1  # only the main process prints


def _figures(run_dir: Path) -> list[dict[str, Any]]:
    names = ("update", "step", "policy_loss", "value_loss", "entropy", "episodes", "return_mean")
    return [{name: row[name] for name in names} for row in read_metrics(run_dir)]


def test_two_processes_train_like_one_which_can_resume_their_run(tmp_path: Path) -> None:
    critic = ["algorithm.args.value_epochs=1", "algorithm.args.value_rollouts=2"]
    assert main(_words(tmp_path / "one", "training.steps=120", *critic)) == 0
    _train_forked(_words(tmp_path / "two", "training.steps=80", *critic))
    _train_forked(_words(tmp_path / "two", "training.steps=120", *critic), processes=1)
    for one, two in zip(_figures(tmp_path / "one"), _figures(tmp_path / "two"), strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    one, two = (load_file(tmp_path / name / "checkpoints" / "000003" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


_WRITING = [
    *("world.num_texts=6", "world.num_tokens=5", "training.checkpoint_every=1", "~algorithm.args"),
    *("~reward", "reward.chrf={}", "~world.args", "evaluation.metrics=[]"),
]
_MASKED = ["policy.args.mask_type=learned_top_p", "policy.args.top_mask=0.7", "model.path=starter"]
_VALIDATED = ["evaluation.every=1", "evaluation.metrics=[{id:chrf}]", "evaluation.episodes=2"]
_ADAPTED = ["model.lora={r:2}", "model.gradient_checkpointing=true"]
_REFERENCES = ["une porte rouge", "turn left", "une balle", "devant un mur", "5 pas", "tu vois une porte"]
"""Texts consisting of words that the model generates."""
_REMEMBERING = """
from dataclasses import dataclass

from groundling import rewards


@rewards.register("nth")
@dataclass(kw_only=True)
class Nth(rewards.Reward):
    by_sample = False
    count = 0

    def score(self, prompts, generations, references, meta):
        self.count += len(generations)
        return [float(n % 7) for n in range(self.count - len(generations), self.count)]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
"""
_TELLING = """
import atexit
from pathlib import Path

def tell():
    print(*(task.read_text() for task in Path("/proc/self/task").glob("*/comm")))

atexit.register(tell)  # called last
"""
"""A ``sitecustomize`` module that prints the threads at exit."""
_OF_THE_BATCH = ["~reward", "reward.weighted_sum={args:{parts:[{id:cider},{id:nth}]}}", "--import", "nth"]
_SINGLE = "epochs:2,micro_batch_size:1"
_GROUPED = ["world.texts_per_prompt=2", "policy.args.value=shared", *_OF_THE_BATCH]


@pytest.mark.parametrize(
    "algorithm, extra_args, sharded, launcher, overrides",
    [
        # With one text per minibatch, one process may have fewer texts than the other.
        ("grpo", _SINGLE.replace("2", "1"), True, "fork", _GROUPED),
        *thorough(
            ("grpo", "epochs:2", False, "torchrun", _GROUPED),
            ("nlpo", f"{_SINGLE},weight_decay:0.1,target_update_iterations:2", True, "torchrun", _MASKED),
            # Only the main process has used the model before it learns.
            ("supervised", "learning_rate_schedule:constant,warmup:0", True, "fork", [*_VALIDATED, *_ADAPTED]),
        ),
    ],
)
def test_two_processes_write_and_learn_like_one(
    algorithm: str,
    extra_args: str,
    sharded: bool,
    launcher: str,
    overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each process has 3 texts, even if this splits a group of two; layers are whole or sharded.

    When torchrun's processes exit, gloo's threads have ended; a thread that then frees a tensor would abort them.
    """
    (tmp_path / "nth.py").write_text(_REMEMBERING)
    (tmp_path / "sitecustomize.py").write_text(_TELLING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(tmp_path)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": text, "say": text}) + "\n" for text in _REFERENCES))
    pool = f"world={{pool:jsonl,args:{{path:{{train:{data},val:{data}}},reference_column:say}}}}"
    # Adam turns rounding errors into whole steps, so the steps are small.
    sizes = "minibatch_size:4" if algorithm == "supervised" else "minibatch_size:15,kl_coefficient:0.1"
    args = ",".join(filter(None, ["learning_rate:1e-5", sizes, extra_args]))
    overrides = [*_WRITING, pool, f"algorithm={{id:{algorithm},args:{{{args}}}}}", *overrides]
    experiment = "rl4lms/increasing_numbers_ppo"
    assert main(_words(tmp_path / "1", "training.steps=80", *overrides, experiment=experiment)) == 0
    for steps in (40, 80):
        parts = [f"training.steps={steps}", f"model.fsdp={sharded}", *overrides]
        start = _train_forked if steps == 40 or launcher == "fork" else _train
        start(_words(tmp_path / "2", *parts, experiment=experiment))
    runs = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        # An optimizer numbers sharded parameters last.
        unlike = ("random.safetensors", *(["optimizer.safetensors"] if sharded else []))
        last = max((folder / "checkpoints").glob("[0-9]*"))
        tensors = {p.name: load_file(p) for p in last.glob("*.safetensors") if p.name not in unlike}
        runs.append((read_metrics(folder), tensors))
    (rows, one), (others, two) = runs
    assert len(rows) == len(others) >= 3
    for row, other in zip(rows, others, strict=True):
        figures, same = ({k: v for k, v in r.items() if k not in TIME_KEYS and v is not None} for r in (row, other))
        assert figures == pytest.approx(same, abs=1e-5, rel=1e-4)
    for file, tensors in one.items():
        assert tensors.keys() == two[file].keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, two[file][name], atol=1e-5, rtol=1e-4)


@THOROUGH
def test_a_process_that_dies_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    child = _start(_words(tmp_path, "training.steps=100000"))
    deadline = time.monotonic() + 240
    while len(read_metrics(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    output, _ = child.communicate(timeout=120)  # it does not hang
    assert child.returncode != 0 and "SIGKILL" in output
    done = json.loads((max((tmp_path / "checkpoints").glob("[0-9]*")) / "run.json").read_text())["counters"]
    _train_forked(_words(tmp_path, f"training.steps={done['step'] + 40}"))
    assert read_metrics(tmp_path)[-1]["update"] == done["update"] + 1


@pytest.mark.parametrize(
    ("place", "override", "message"),
    [
        ("run", "world.num_envs=1", "too few for 2 processes: each needs one"),
        ("file", "seed=3", "cannot write to the folder"),
    ],
)
def test_an_error_ends_all_processes(place: str, override: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = groundling(2, *_words(tmp_path / place, override))
    assert (first.exit_code, second.exit_code) == (1, 1)
    assert message in first.output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_different_weights_of_processes_are_refused(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def head(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(torch.nn.Linear(4, 3, dtype=dtype).parameters())

    def sums(parameters: list[torch.Tensor], others: list[int] | None) -> list[list[int]]:
        """Return a process's two sums of gradients for the other process, which replies with ``others``."""
        checksums: list[list[int]] = []
        monkeypatch.setattr(
            Processes, "gather", lambda self, value: checksums.append(value) or [value, others or value]
        )
        process = Processes(0, 2)
        for _ in range(2):
            process.sum_gradients(parameters)
        return checksums

    monkeypatch.setattr(distributed, "all_reduce", lambda flat: None)
    (first,) = sums(head(0), None)  # compared once
    assert sums(head(0), first) == [first]
    with pytest.raises(RunError, match=r"a weight of shape \(3, 4\) differs between the 2 processes"):
        sums(head(1), first)


@pytest.mark.parametrize("other_has", [False, True])
def test_a_weight_without_gradients_is_not_changed(other_has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result equals that of one process, whatever the optimizer's momentum and weight decay."""
    other = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0] if other_has else [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    monkeypatch.setattr(Processes, "_compare", lambda self, parameters: None)
    monkeypatch.setattr(distributed, "all_reduce", lambda flat: flat.add_(other))
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    used.grad = torch.full((3,), 4.0)
    Processes(0, 2).sum_gradients([used, unused])
    assert used.grad.tolist() == [5.0] * 3
    assert (unused.grad is None) != other_has
    torch.optim.AdamW([used, unused], weight_decay=0.1).step()
    assert (unused == 1).all() != other_has


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_of_processes_are_a_partition(size: int) -> None:
    worlds = [Processes(rank, size) for rank in range(size)]
    assert [i for w in worlds for i in range(32)[w.share(32)]] == list(range(32))
    work = [Work((7 * i) % 11, (7 * i) % 11 if i < 12 else i) for i in range(20)]
    pieces = [list(micro_batches(torch.arange(20), 4, work, w)) for w in worlds]
    assert sorted(torch.cat([m for share in pieces for m in share]).tolist()) == list(range(20))
    distinct = [{work[i] for m in share for i in m.tolist()} for share in pieces]
    assert sum(map(len, distinct)) == len(set(work))  # equal ones are in the same process
    assert max(map(len, distinct)) - min(map(len, distinct)) <= 1  # and the work is balanced
