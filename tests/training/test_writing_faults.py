"""Errors in text generation runs: one line, no loss, and the run can be resumed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.training.tracking import read_metrics
from tests.runs import assert_equal_runs
from tests.thorough import thorough

Train = Callable[..., tuple[int, str]]

_OWN_REWARD = """
from dataclasses import dataclass
from groundling.rewards import Reward, rewards

calls = 0

@rewards.register("own-{name}")
@dataclass(kw_only=True)
class Own(Reward):
    def score(self, prompts, generations, references, meta):
        global calls
        calls += 1
        scores = [float(len(g)) for g in generations]
        return scores if calls <= {good_calls} else {bad}
"""


@pytest.fixture
def train(
    tmp_path: Path,
    model_folder: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Train:
    """Return `train(*overrides, family=…, run=…)`, which returns the command's exit status and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # otherwise it retries for half a minute

    def train(*overrides: str, family: str = "gpt2", run: str = "run") -> tuple[int, str]:
        capsys.readouterr()
        words = [
            *(f"run_dir={run}", "device=cpu", f"model.path={model_folder(family)}"),
            *("world.num_texts=4", "world.num_tokens=4", "training.steps=80"),
            *("training.checkpoint_every=1", "~reward", "reward.dates={}", "~algorithm.args"),
            *("algorithm.args={minibatch_size:16,learning_rate:1e-4}", "evaluation.metrics=[]"),
            "evaluation.episodes=4",
        ]
        status = main(["train", "rl4lms/increasing_numbers_ppo", *words, *overrides])
        return status, capsys.readouterr().err

    return train


def _line(result: tuple[int, str]) -> str:
    """Return the only line that a failed command printed."""
    status, error = result
    assert status == 1 and error.startswith("error: ") and error.count("\n") == 1, error
    return error


def _pool(path: Path, prompts: list[str], references: str = "") -> list[str]:
    rows = [{"ask": prompt} | ({"say": references} if references else {}) for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = "prompt_column:ask" + (",reference_column:say" if references else "")
    return ["~world.args", f"world={{pool:jsonl,args:{{path:{{train:{path},val:{path}}},{columns}}}}}"]


def _own_reward(folder: Path, name: str, bad: str = "scores", good_calls: int = 0) -> list[str]:
    """Write a user's module, which is imported again, as in a new process."""
    code = _OWN_REWARD.format(name=name, bad=bad, good_calls=good_calls)
    (folder / f"own_{name}.py").write_text(code)
    sys.modules.pop(f"own_{name}", None)
    return ["--import", f"own_{name}"]


def test_an_empty_prompt_is_refused(train: Train, tmp_path: Path) -> None:
    prompts = ["go left"] * 4000  # a run reads only a few of them
    error = _line(train(*_pool(tmp_path / "rows.jsonl", [*prompts, ""])))
    assert "train_4000 has an empty prompt" in error and read_metrics(tmp_path / "run") == []
    assert train(*_pool(tmp_path / "rows.jsonl", [*prompts[:-1], " ", "go right"])) == (0, "")  # a space is a token
    assert read_metrics(tmp_path / "run")


@pytest.mark.parametrize("family", ["gpt2", *thorough("bart")])
def test_prompts_beyond_the_context_length_are_refused_or_cut(family: str, train: Train, tmp_path: Path) -> None:
    pool = _pool(tmp_path / "rows.jsonl", ["go left " * 300] * 4, "turn right " * 300)
    error = _line(train(*pool, "world.max_prompt_length=300", family=family))
    assert "300 tokens" in error and "256 positions" in error and "world.max_prompt_length" in error
    supervised = ["algorithm.id=supervised", "~algorithm.args", "world.num_tokens=270"]
    error = _line(train(*pool, *supervised, family=family))
    assert "a text of 270" in error and "world.num_tokens" in error
    assert train(*pool, "world.max_prompt_length=200", family=family) == (0, "")  # truncated to fit


def test_missing_references_are_reported(train: Train, tmp_path: Path) -> None:
    pool = _pool(tmp_path / "rows.jsonl", ["go left", "go right"])
    assert "reference" in _line(train(*pool, "~reward", "reward.chrf={}"))
    assert "reference" in _line(train(*pool, "evaluation.metrics=[{id:chrf}]", "evaluation.every=2"))
    assert "no reference" in _line(train(*pool, "algorithm.id=supervised", "~algorithm.args"))
    assert train(*pool, "evaluation.metrics=[{id:diversity}]", "evaluation.every=2") == (0, "")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("[float('nan')] * len(scores)", "returned nan at index 0:"),
        *thorough(
            ("None", "must return one number for each sample, got None"),
            ("scores[:-1]", "wrong number of rewards: expected 4, got 3"),
            ("['good'] * len(scores)", "must return one number for each sample"),
        ),
    ],
)
def test_a_reward_that_breaks_in_the_third_update(bad: str, message: str, train: Train, tmp_path: Path) -> None:
    name = tmp_path.name
    reward = ["~reward", f"reward.own-{name}={{}}"]
    assert train(*reward, *_own_reward(tmp_path, name), run="whole") == (0, "")
    assert message in _line(train(*reward, *_own_reward(tmp_path, name, bad, good_calls=2)))
    assert [row["update"] for row in read_metrics(tmp_path / "run")] == [1, 2]
    assert train(*reward, *_own_reward(tmp_path, name)) == (0, "")
    assert_equal_runs(tmp_path / "whole", tmp_path / "run")
