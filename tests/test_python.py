"""The Python API: runs, their figures, and agents in custom loops."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from huggingface_hub import ModelCard

import groundling as gl
from groundling.cli.main import main
from groundling.envs.controls import function_in_use
from groundling.envs.seeds import held_out_seed
from groundling.evaluation import hub
from groundling.lm.load.model_files import STARTERS
from groundling.reports.run_folder import read_run
from tests.thorough import THOROUGH

ROOT = Path(__file__).resolve().parents[1]
_SMALL = [
    *("world.num_envs=4", "world.num_steps=4", "device=cpu", "evaluation.num_envs=3"),
    *("algorithm.args.minibatch_size=8", "world.args.max_steps=12", "evaluation.deterministic=true"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> gl.Run:
    folder = tmp_path_factory.mktemp("runs") / "go to"
    return gl.train(
        world="BabyAI-GoToLocal-v0", model="starter", algorithm="ppo", steps=48, run_dir=folder, overrides=_SMALL
    )


def _figures(evaluation: gl.Evaluation) -> dict[str, float]:
    return {name: figure.value for name, figure in evaluation.figures["trained"].items()}


@THOROUGH
def test_a_run_is_evaluated_and_drawn(run: gl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["step"] for row in run.metrics] == [16, 32, 48]
    evaluation = run.evaluate(episodes=4)
    assert list(evaluation.played) == ["trained", "zero-shot", "random"]
    evaluation.table()
    printed = capsys.readouterr().out
    assert "success" in printed and f"{_figures(evaluation)['return']:.3f}" in printed
    (axes,) = run.plot().axes
    assert axes.get_ylabel() in ("success rate", "return mean")
    assert len(run.plot("loss", "entropy").axes) >= 2
    with pytest.raises(gl.RunError, match="no metric luck"):
        run.plot("luck")
    with pytest.raises(gl.ConfigError, match="is a group of suites"):
        run.evaluate("generalisation")
    with pytest.raises(gl.ConfigError, match="episodes must be at least 1"):
        run.evaluate(episodes=0)


@THOROUGH
def test_named_results_are_kept_next_to_the_others(run: gl.Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    copy = gl.Run(folder)
    copy.evaluate(episodes=2)
    copy.evaluate(episodes=2, overrides=["world.args={max_steps: 2}"], name="short")
    names = ["held-out", "held-out-short"]
    shown = read_run(folder)
    assert list(shown.evaluations) == list(shown.episodes()) == names
    assert {len(e.frames) - 1 for e in shown.episodes()["held-out-short"]} <= {1, 2}
    assert main(["publish", str(folder), "--output", str(tmp_path / "out")]) == 0
    results = ModelCard.load(tmp_path / "out" / "README.md").data.eval_results
    assert list(dict.fromkeys(result.dataset_config for result in results)) == names
    (folder / "checkpoints" / "best").mkdir()
    for name in ("../other", "000048", "", 3, "best"):
        with pytest.raises(gl.ConfigError, match=r"invalid name for results|results cannot be named"):
            copy.evaluate(episodes=2, name=name)  # type: ignore[arg-type]
    (folder / "checkpoints" / "best").rmdir()
    gymnasium.register("test/Passing-v0", entry_point=gymnasium.spec("BabyAI-GoToLocal-v0").entry_point)
    copy.evaluate(episodes=1, overrides=["world.env=test/Passing-v0"], name="passing")
    del gymnasium.registry["test/Passing-v0"]
    assert "held-out-passing" in read_run(folder).episodes()  # recorded episodes can be shown without their env


def test_an_agent_acts_in_a_loop_as_it_does_in_an_evaluation(run: gl.Run) -> None:
    agent = gl.load(run.folder)
    env = agent.make_env()
    for episode in run.evaluate(episodes=3).played["trained"].episodes:
        agent.reset()
        observation, info = env.reset(seed=held_out_seed(episode.number))
        taken = []
        while True:
            taken.append(agent.act(observation, info))
            assert sum((agent.probabilities or {}).values()) == pytest.approx(1, abs=1e-5)
            observation, _, terminated, truncated, info = env.step(taken[-1])
            if terminated or truncated:
                break
        assert tuple(taken) == tuple(episode.record.actions)


def test_what_is_published_comes_back(run: gl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = tmp_path / "published"
    assert main(["publish", str(run.folder), "--output", str(published)]) == 0
    expected = _figures(run.evaluate(episodes=4))
    assert _figures(gl.Run(published).evaluate(episodes=4)) == expected

    served = tmp_path / "hub"
    shutil.copytree(published, served, ignore=shutil.ignore_patterns("evaluation", "samples"))
    (served / "evil.py").write_text("raise SystemExit")

    def download(repository: str, name: str, revision: str | None, local_files_only: bool) -> str:
        assert (repository, revision) == ("some/agent", "v1")
        return str(served / name)

    def snapshot(repository: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert "evil.py" not in allow_patterns and "model.safetensors" in allow_patterns
        return str(served)

    client = importlib.import_module("huggingface_hub")
    monkeypatch.setattr(client, "hf_hub_download", download)
    monkeypatch.setattr(client, "snapshot_download", snapshot)
    monkeypatch.chdir(tmp_path)
    agent = gl.load("some/agent", revision="v1")
    observation, info = agent.make_env().reset(seed=1)
    assert agent.act(observation, info) in range(6)
    monkeypatch.setattr(hub, "fetch", lambda repository, revision: served)
    assert main(["evaluate", "some/agent", "--episodes", "4"]) == 0
    assert (tmp_path / "runs" / "some--agent" / "evaluation" / "held-out.json").exists()
    assert not (served / "evaluation").exists()  # nothing is written to the hub's cache


def test_an_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> str:
        raise OSError("no network\nhere")

    monkeypatch.setattr(importlib.import_module("huggingface_hub"), "hf_hub_download", unreachable)
    with pytest.raises(gl.RunError, match="could not download some/agent from the hub: no network here"):
        gl.load("some/agent")
    with pytest.raises(gl.ConfigError, match="revision=v1 requires a hub id, and random is not one"):
        gl.load("random", revision="v1")


def test_a_missing_folder_is_not_searched_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(gl.ConfigError, match="there is no folder runs/nope"):
        gl.load("runs/nope")


def test_an_agent_plays_without_its_rewards_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @gl.rewards.register("test-of-the-author")
    def letters(generations: list[str]) -> list[float]:
        return [float(len(text)) for text in generations]

    run = gl.train(
        world="BabyAI-GoToLocal-v0",
        model="starter",
        reward={"env": 1.0, "test-of-the-author": 0.01},
        steps=16,
        run_dir=tmp_path / "run",
        overrides=_SMALL,
    )
    figures = _figures(run.evaluate(episodes=2))
    settings = run.folder / "config.yaml"
    settings.write_text(settings.read_text().replace("imports: []", "imports: [my_module, 'a) b']"))
    assert main(["publish", str(run.folder), "--output", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "import my_module  # a module of the author" in card and "a) b" not in card
    assert "groundling watch THIS-FOLDER --import my_module\n```" in card
    rewards = importlib.import_module("groundling.rewards").rewards
    monkeypatch.delitem(rewards._factories, "test-of-the-author")  # as in a new process without the module
    assert gl.load(tmp_path / "out").name == run.agent().name
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert _figures(gl.Run(tmp_path / "run").evaluate(episodes=2)) == figures
    with pytest.raises(gl.ConfigError, match="test-of-the-author"):
        gl.load(tmp_path / "out", overrides=["reward.test-of-the-author.coefficient=1"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "pass an experiment or a world"),
        ({"world": "BabyAI-Nowhere-v0"}, "no world 'BabyAI-Nowhere-v0'"),
        ({"world": "BabyAI-GoToLocl-v0"}, "did you mean 'BabyAI-GoToLocal-v0'"),
        ({"world": "dummy_pol"}, "did you mean 'dummy_pool'"),
        ({"world": "dummy_pool"}, "has no reward"),
        ({"world": "BabyAI-GoToLocal-v0", "algorithm": "pp"}, "ppo"),
        ({"world": "BabyAI-GoToLocal-v0", "steps": 0}, "training.steps"),
        ({"world": "BabyAI-GoToLocal-v0", "reward": {"env": [1]}}, "coefficient"),
        ({"experiment": "demo", "seed": object()}, "not a value that a config can contain"),
        ({"experiment": "demo", "overrides": "seed=1"}, r"list of strings or mappings: use overrides=\['seed=1'\]"),
        ({"experiment": "demo", "overrides": {"seed": 1}}, r"use overrides=\[\{'seed': 1\}\]"),
        ({"experiment": "demo", "steps": 1.5}, r"training\.steps must be a whole number, got 1\.5"),
        ({"experiment": "demo", "reward": 3}, r"must be an id, a function of generations, a list .*, got 3"),
    ],
)
def test_invalid_requests_are_reported(asked: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(gl.ConfigError, match=message):
        gl.train(**asked, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learning_rate", r"pass settings as overrides, as in overrides=\['algorithm\.args\.learning_rate=1e-4'\]"),
        ("modle", "did you mean 'model'"),
    ],
)
def test_unknown_arguments_are_answered_with_advice(name: str, message: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}': {message}"):
        gl.train("demo", **{name: 1e-3})


def test_a_run_does_not_write_into_the_models_folder(tmp_path: Path) -> None:
    model = shutil.copytree(STARTERS["starter-causal"], tmp_path / "model")
    before = sorted(model.iterdir())
    with pytest.raises(gl.ConfigError, match="contains a model, so a run cannot use it"):
        gl.train(world="BabyAI-GoToLocal-v0", model=model, steps=16.0, run_dir=model)
    assert sorted(model.iterdir()) == before


def test_another_algorithm_and_reward_replace_those_of_the_experiment(tmp_path: Path) -> None:
    few = ["world.num_envs=2", "world.num_steps=4", "device=cpu", "world.args.max_steps=8"]
    run = gl.train(
        "demo", algorithm="a2c", reward={"env": 0.5, "count": 0.1}, steps=8, run_dir=tmp_path / "run", overrides=few
    )
    text = (run.folder / "config.yaml").read_text()
    assert "id: a2c" in text and "minibatch_size: 64" not in text and "coefficient: 0.5" in text


def test_a_writer_writes_to_a_prompt(tmp_path: Path) -> None:
    run = gl.train(
        "rl4lms/increasing_numbers_ppo",
        steps=64,
        run_dir=tmp_path / "run",
        overrides=["world.num_texts=4", "device=cpu", "algorithm.args.minibatch_size=16"],
    )
    agent = run.agent()
    assert isinstance(agent.act("1 2 3"), str)
    with pytest.raises(gl.ConfigError, match="the prompt must be a string"):
        agent.act(3)
    with pytest.raises(gl.ConfigError, match="has no env"):
        agent.make_env()


def test_a_language_model_acts_with_an_experiments_settings() -> None:
    folder = STARTERS["starter-causal"]
    with pytest.raises(gl.ConfigError, match="is a language model, not an agent"):
        gl.load(folder)
    agent = gl.load("demo", device="cpu", overrides=[f"model.path={folder}"])
    observation, info = agent.make_env().reset(seed=1)
    assert agent.act(observation, info) in range(6)


@THOROUGH
def test_controls_compare_the_same_episodes(run: gl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    def other_goal(goal: str, observation: Any, info: Any) -> str:
        return f"do not {goal}"

    results = run.controls(episodes=2, other_goal=other_goal)
    assert list(results.played) == ["held-out", "swapped", "dropped", "scrambled", "corrupted"]
    assert {figure.episodes for figure in results.differences.values()} == {2}
    (first, _) = results.played["swapped"]["trained"].episodes
    assert str(first.about["mission"]).startswith("do not ")
    results.print()
    assert "Does the agent read its goal?" in capsys.readouterr().out
    assert function_in_use() is None
    with pytest.raises(gl.ConfigError, match=r"'controls' is a group of suites: call controls\(\)"):
        run.evaluate("controls")
