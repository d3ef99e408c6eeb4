"""The examples can be run as described in their headers."""

import ast
import json
import runpy
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from safetensors.torch import load_file

from groundling.cli.main import main
from groundling.lm.load.model_files import resolve
from tests.launching import launch
from tests.thorough import THOROUGH

ROOT = Path(__file__).resolve().parents[1]


def test_hallway_trains_an_own_env_with_an_own_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    options = ["--config-dir", "examples", "--import", "examples.hallway"]
    small = ["training.steps=16", "world.num_steps=4", "world.num_envs=2", "evaluation.num_envs=2"]
    assert main(["train", "hallway", *options, f"run_dir={tmp_path}", *small]) == 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(row["policy_loss"] != 0 for row in rows)
    assert main(["evaluate", str(tmp_path), "--import", "examples.hallway", "--episodes", "4"]) == 0
    assert main(["report", str(tmp_path), "--import", "examples.hallway"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "You see a red door" in page and "the room before step" not in page  # the env does not render images
    assert main(["list", "envs", "--import", "examples.hallway"]) == 0
    assert "Hallway-v0" in capsys.readouterr().out


def test_drawers_has_actions_of_unequal_length_and_is_won_by_reading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = ["--config-dir", "examples", "--import", "examples.drawers", "device=cpu", "world.num_envs=2"]
    assert main(["train", "drawers", *words, "--dry-run"]) == 0
    assert "find the " in capsys.readouterr().out
    env = gymnasium.make("Drawers-v0", disable_env_checker=True)
    lengths, returns = set(), []
    for seed in range(40):
        info, ended, reward = env.reset(seed=seed)[1], False, 0.0
        while not ended:
            lengths |= {len(action.split()) for action in info["actions"]}
            wanted = info["goal"].replace("find", "take") + " from"
            right = [action for action in info["actions"] if action.startswith(wanted)]
            _, reward, terminated, truncated, info = env.step((right or ["go on"])[0])
            ended = terminated or truncated
        returns.append(float(reward))
    assert lengths == {2, 8} and returns == [1.0] * 40


@THOROUGH
def test_loops_are_the_same_with_any_number_of_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = (ROOT / "examples" / "lamorel_ppo.py").read_text()
    assert len(port.splitlines()) <= 40
    weight = "weights {policy.value_head.layers[0].weight.sum():.9f}, mean"
    for long, short in (("range(20)", "range(2)"), ("range(32)", "range(4)"), (": mean", weight)):
        assert port.count(long) == 1
        port = port.replace(long, short)
    shortened = tmp_path / "lamorel_ppo.py"
    shortened.write_text(port)
    alone = []
    for script in (ROOT / "examples" / "own_loop.py", shortened):
        first, second = launch(2, lambda script=script: runpy.run_path(str(script), run_name="__main__") and 0)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with torch.random.fork_rng():
            runpy.run_path(str(script), run_name="__main__")
        torch.set_num_threads(threads)
        alone.append(capsys.readouterr().out)
        assert (first.exit_code, first.output) == (0, alone[-1])
        assert (second.exit_code, second.output) == (0, "")
    assert float(alone[0].splitlines()[-2].split()[-1]) > 0.7  # a third by chance
    weights = [line.split("weights ")[1].split(",")[0] for line in alone[1].splitlines()]
    assert len(weights) == 2 and weights[0] != weights[1]  # the weights change


def test_the_code_for_users_of_lamorel_runs() -> None:
    """The page's blocks of Python code can be run in order."""
    page = (ROOT / "docs" / "migration" / "lamorel.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert len(blocks) == 4
    known: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks:
            exec(compile(block, "docs/migration/lamorel.md", "exec"), known)
    lm, prompts = known["lm"], known["prompts"]
    assert torch.equal(known["scores"], known["scored"].log_probs[0]) and len(known["texts"]) == 3
    assert known["outputs"].shape == (1, 2) and known["figures"]["loss"] > 0
    assert torch.equal(known["scored"].state, lm.encode(prompts))  # the same state with and without candidates
    assert known["best"] == 0


def test_own_metric_and_rewards_are_known_by_their_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert len((ROOT / "examples" / "own_reward.py").read_text().splitlines()) < 40
    for kind, id in (("metrics", "long_words"), ("rewards", "long_words"), ("rewards", "new_words")):
        assert main(["list", kind, "--import", "examples.own_reward"]) == 0
        assert id in capsys.readouterr().out
    from groundling import metrics, rewards

    samples = (["the cat sat", "a dog"], ["cat", "yesterday yesterday ran"], [[], []])
    assert metrics.create("long_words").compute(*samples)["style/long_words"].corpus == pytest.approx(1 / 3)
    assert rewards.create("no_echo")(*samples).tolist() == [-1, 0]
    parts = [{"id": "new_words"}, {"id": "no_echo", "weight": 0.5}]
    texts = [["c", "cat"], ["yesterday", "yesterday yesterday", "yesterday yesterday ran"]]
    token_rewards = rewards.create("weighted_sum", parts=parts).at_tokens(samples[0], texts, samples[2])
    assert token_rewards.tolist() == [[1, -0.5, 0], [1, 0, 1]]


def test_own_pool_is_written_for_and_fits_on_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    script = ROOT / "examples" / "own_pool.py"
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == "9 + 16 = 25 1.0\n"
    assert len(script.read_text().splitlines()) < 40


def test_own_agent_trains_its_head_and_no_frozen_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert len((ROOT / "examples" / "own_agent.py").read_text().splitlines()) < 40
    words = ["demo-easy", "--import", "examples.own_agent", "policy.id=frozen_encoder", "~policy.args"]
    small = ["world.num_steps=4", "world.num_envs=4", "algorithm.args.minibatch_size=8", "device=cpu"]
    small += [f"run_dir={tmp_path}", "training.keep_checkpoints=3", "training.checkpoint_every=1"]
    for steps in (16, 32):  # the second run resumes with the saved weights
        assert main(["train", *words, *small, f"training.steps={steps}"]) == 0
    began = load_file(resolve("starter") + "/model.safetensors")
    first, second = (tmp_path / "checkpoints" / name for name in ("000001", "000002"))
    learnt = load_file(second / "model.safetensors")
    changed = {name for name, tensor in learnt.items() if not torch.equal(tensor, began[name])}
    assert changed and all(name.startswith("decoder.") for name in changed)
    heads = [load_file(folder / "value_head.safetensors")["linear.weight"] for folder in (first, second)]
    assert not torch.equal(*heads)
    assert main(["evaluate", str(tmp_path), "--import", "examples.own_agent", "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        ("own_algorithm", ["algorithm.id=best_half", "~algorithm.args"]),
        ("own_policy", ["policy.id=bounded", "~policy.args", "algorithm.args.epochs=1"]),
    ],
)
def test_own_algorithm_and_policy_write(
    module: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert len((ROOT / "examples" / f"{module}.py").read_text().splitlines()) <= 40
    small = [f"run_dir={tmp_path}", "device=cpu", "world.num_texts=4", "world.num_tokens=6", "training.steps=25"]
    words = ["train", "rl4lms/increasing_numbers_ppo", "--import", f"examples.{module}", *changes, *small]
    assert main(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) >= 2
    if module == "own_algorithm":
        assert all(2 <= row["kept"] <= 4 and row["loss"] > 0 for row in rows)
    else:
        assert all(0 < row["value"] < 1 for row in rows)
    assert main(words) == 0  # resumes with the saved weights


@pytest.mark.parametrize(
    ("module", "limit"),
    [("own_world", 8), ("own_algorithm", 4), ("own_reward", 1), ("own_policy", 6), ("own_judge", 3)],
)
def test_a_new_component_needs_few_names_of_the_package(module: str, limit: int) -> None:
    source = (ROOT / "examples" / f"{module}.py").read_text()
    names = [
        name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
        if (node.module or "" if isinstance(node, ast.ImportFrom) else name.name).startswith("groundling")
    ]
    assert 0 < len(names) <= limit


def test_a_tool_env_takes_any_text() -> None:
    runpy.run_path(str(ROOT / "examples" / "calculator.py"))
    env = gymnasium.make("Calculator-v0")
    observation, info = env.reset(seed=3)
    assert isinstance(observation, str) and (observation or info["goal"])
    assert env.step("8")[1] >= 0 and env.reset(seed=3)[0] == observation
