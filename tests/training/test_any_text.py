"""Worlds where actions are free text, and tools: training, resuming, evaluation, datasets, cloning, report."""

import json
import shutil
from pathlib import Path

import gymnasium
import pytest

import groundling as gl
from groundling.cli.main import main
from groundling.config.overrides import Change
from groundling.runs import _chosen
from tests.envs import echo
from tests.runs import assert_equal_runs, error_of, figures
from tests.thorough import some_of

_WORLD = ["~world.args", "world.num_envs=4", "world.history=2", "device=cpu", "world.num_steps=3"]
_AGENT = ["~policy.args", "policy.id=action_generating", "policy.args={value_hidden_sizes: [8], max_action_tokens: 3}"]
_SHORT = ["training.steps=24", "world.entropy_floor=0", "evaluation.episodes=3", "training.checkpoint_every=12"]
_PLAIN = ["~algorithm.args", "algorithm.args.minibatch_size=6"]
_GROUPS = ["~algorithm.args", "world.group_size=2"]
_ALGORITHMS = {
    "ppo": [*_PLAIN, "algorithm.args.epochs=1"],
    "ppo token": [*_PLAIN, "algorithm.args.epochs=1", "algorithm.args.credit=token"],
    "a2c": ["~algorithm.args", "algorithm.id=a2c"],
    "grpo": [*_GROUPS, "algorithm.id=grpo"],
    "rloo": [*_GROUPS, "algorithm.id=rloo"],
    "gigpo": [*_GROUPS, "algorithm.id=gigpo"],
}


def _train(run_dir: Path, *more: str, env: str = "test/Echo-v0", model: str = "starter-causal") -> int:
    words = [f"world.env={env}", *_WORLD, *_AGENT, *_SHORT, "evaluation.baselines=[zero-shot,random]", *more]
    return main(["train", "demo", f"model.path={model}", *words, f"run_dir={run_dir}"])


@pytest.mark.parametrize(
    ("algorithm", "model", "env"),
    some_of(
        [(a, m, e) for a in _ALGORITHMS for m in ("starter-causal", "starter") for e in ("Echo", "Calculator")],
        [("ppo token", "starter-causal", "Calculator"), ("gigpo", "starter", "Echo")],
    ),
)
def test_every_algorithm_trains(algorithm: str, model: str, env: str, tmp_path: Path) -> None:
    assert _train(tmp_path / "run", *_ALGORITHMS[algorithm], env=f"test/{env}-v0", model=model) == 0
    last = figures(tmp_path / "run")[-1]
    assert last["tokens_per_turn"] > 0 and "invalid_actions" not in last
    assert ("letters" if env == "Echo" else "invalid_tool_calls") in last


def test_a_run_resumes_is_evaluated_watched_reported_and_cloned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other, data = tmp_path / "run", tmp_path / "other", tmp_path / "data"
    assert _train(run, *_ALGORITHMS["ppo"]) == 0
    assert _train(other, *_ALGORITHMS["ppo"], "training.steps=12") == 0
    assert _train(other, *_ALGORITHMS["ppo"]) == 0
    assert_equal_runs(run, other)

    assert main(["evaluate", str(run)]) == 0
    assert "skipping baseline random: any text is an action in test/Echo-v0" in capsys.readouterr().err
    steps = json.loads((run / "samples" / "held-out.json").read_text())[0]["steps"]
    assert len(steps) == 2 and all(isinstance(step["action"], str) for step in steps)
    assert "Possible action" not in steps[0]["prompt"] and steps[0]["probabilities"] is None
    assert main(["watch", str(run), "--fast"]) == 0
    assert main(["report", str(run)]) == 0

    assert main(["collect", str(run), "--episodes", "6", "--output", str(data)]) == 0
    cloning = ["~algorithm.args", "algorithm.id=bc", "algorithm.args={minibatch_size: 4}", f"world.dataset={data}"]
    assert _train(tmp_path / "clone", *cloning, "world.entropy_floor=0.001") == 0
    assert figures(tmp_path / "clone")[-1]["loss"] > 0
    shutil.rmtree(other)

    agent = gl.load(run)
    env = agent.make_env()
    observation, info = env.reset(seed=5)
    assert isinstance(agent.act(observation, info), str)
    capsys.readouterr()


def test_a_policy_that_chooses_from_a_list_names_the_one_that_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "demo", "world.env=test/Echo-v0", "~world.args", f"run_dir={tmp_path}"]
    message = error_of(words, capsys)
    assert "accepts any text as an action and lists none; set policy.id to one of action_generating" in message


def test_an_env_with_required_arguments_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks(echo.Echo):
        def __init__(self, question: str) -> None:
            super().__init__()

    monkeypatch.setitem(gymnasium.registry, "test/Asks-v0", gymnasium.envs.registration.EnvSpec("test/Asks-v0", Asks))
    for given in (["world.args={question: why}"], [{"world.args.question": "why"}]):
        _, changes = _chosen(None, None, given, world="test/Asks-v0", reward=None)
        assert Change("policy.id", "action_generating") in changes
