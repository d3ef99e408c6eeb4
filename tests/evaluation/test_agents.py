"""Every agent in GLAM's comparison is trained and evaluated, and every suite runs with every agent that reads text."""

import csv
import json
from pathlib import Path

import pytest

from groundling.cli.main import main
from groundling.lm import LanguageModel
from groundling.runs import Run
from groundling.worlds.text.world import TextWorld
from tests.thorough import some_of, thorough

_SMALL = ["model.path=starter", "world.num_envs=2", "world.history=1", "world.num_steps=4", "training.steps=16"]
_SMALL += ["evaluation.num_envs=2", "evaluation.baselines=[]", "device=cpu"]
_AGENTS = {
    "mixed": ["policy.args.value_hidden_sizes=[8]", "algorithm.args.minibatch_size=8"],
    "npa": ["policy.args.value_hidden_sizes=[8]", "algorithm.args.minibatch_size=8"],
    "npae": ["policy.args.hidden_sizes=[8]", "algorithm.args.minibatch_size=8"],
    "action_head": ["policy.args.hidden_sizes=[8]", "algorithm.args.minibatch_size=8"],
    "drrn": ["algorithm.args.steps_per_gradient=4"],
    "symbolic": ["policy.args={recurrence: 4, channels: 8}", "algorithm.args.minibatch_size=8", "world.history=3"],
}


def _train(agent: str, run_dir: Path, *more: str) -> None:
    assert main(["train", f"glam/{agent}", f"run_dir={run_dir}", *_SMALL, *_AGENTS[agent], *more]) == 0


@pytest.mark.parametrize("agent", some_of(_AGENTS, ["mixed"]))
def test_every_agent_trains_two_updates_and_is_evaluated(agent: str, tmp_path: Path) -> None:
    more = ["algorithm.args.micro_batch_size=4"] if agent in ("mixed", "npa", "npae", "action_head") else []
    _train(agent, tmp_path, "world.env=BabyAI-GoToRedBallNoDists-v0", *more)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert main(["evaluate", str(tmp_path), "--episodes", "2"]) == 0
    assert json.loads((tmp_path / "evaluation" / "held-out.json").read_text())["agents"]["trained"]["episodes"] == 2


def test_a_run_is_evaluated_where_its_initial_model_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    LanguageModel.from_pretrained("starter").save_pretrained("own")
    words = [*_SMALL, "model.path=own", "evaluation.baselines=[zero-shot]", "policy.args.value_hidden_sizes=[8]"]
    assert main(["train", "text", *words, "algorithm.args.minibatch_size=8", "run_dir=run"]) == 0
    Path("own").rename("moved")
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    skipped = "skipping baseline zero-shot: the initial model of the training run is missing (no model 'own'"
    assert skipped in capsys.readouterr().err
    assert list(Run("run").evaluate(episodes=2).figures) == ["trained"] and skipped in capsys.readouterr().err


@pytest.mark.parametrize("agent", thorough("mixed", "action_head", "drrn"))
def test_every_suite_runs_on_every_agent_that_reads(agent: str, tmp_path: Path) -> None:
    more = ["algorithm.args.micro_batch_size=4"] if agent != "drrn" else []
    _train(agent, tmp_path, "world.args.max_steps=8", *more)
    assert main(["evaluate", str(tmp_path), "--suite", "all", "--episodes", "1"]) == 0
    assert {path.stem for path in (tmp_path / "evaluation").glob("*.json")} == set(TextWorld.find_suites("all"))


def test_an_expert_without_an_action_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = ["world.env=BabyAI-PickupLoc-v0", "world.actions=[turn left, turn right, go forward]"]
    words = ["demo-easy", "~world.args", *world, "evaluation.baselines=[expert,random]", "device=cpu"]
    assert main(["evaluate", *words, f"run_dir={tmp_path}", "--episodes", "2"]) == 0
    assert "skipping baseline expert: the expert needs the env's action 3" in capsys.readouterr().err
    results = json.loads((tmp_path / "evaluation" / "held-out.json").read_text())
    assert list(results["agents"]) == ["zero-shot", "random"] and list(results["left_out"]) == ["expert"]
    assert (tmp_path / "samples" / "held-out.json").exists()
    assert main(["evaluate", "expert", *world, f"run_dir={tmp_path / 'expert'}", "--episodes", "2"]) == 1
    assert "(turn left, turn right, go forward): add the missing actions" in capsys.readouterr().err


def test_all_agents_play_the_same_episodes_where_training_draws_tasks_by_chance(tmp_path: Path) -> None:
    args = "world.args={draw_task: construction, max_steps: 2}"
    words = ["demo-easy", "~world.args", "world.env=BabyAI-MixedTrainLocal-v0", args]
    words += ["evaluation.baselines=[random,expert]"]
    suites = ["--suite", "held-out,pick-up-then-go-to", "--episodes", "8", "device=cpu"]
    for k in "ab":
        assert main(["evaluate", *words, *suites, f"run_dir={tmp_path / k}"]) == 0
    with (tmp_path / "a" / "evaluation" / "held-out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    missions = [[row["mission"] for row in rows if row["agent"] == agent] for agent in ("zero-shot", "random")]
    assert missions[0] == missions[1] and len({row["task"] for row in rows}) > 2
    first, again = ((tmp_path / k / "evaluation" / "held-out.json").read_text() for k in "ab")
    assert first == again and json.loads(first)["world"]["args"]["draw_task"] == "reset"


def test_figures_of_another_world_replace_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, folder = ["world.env=BabyAI-GoToLocal-v0", "world.args={max_steps: 3}"], tmp_path / "evaluation"

    def evaluate(*words: str) -> str:
        command = ["evaluate", "random", f"run_dir={tmp_path}", "--episodes", "2", *there, *words]
        assert main(command) == 0
        return capsys.readouterr().err

    assert evaluate() == evaluate("evaluation.num_envs=1") == "" and not (folder / "replaced").exists()
    figures = {kind: (folder / f"held-out.{kind}").read_bytes() for kind in ("json", "csv")}
    assert evaluate("world.args.max_steps=2", "--name", "short") == "" and not (folder / "replaced").exists()
    assert json.loads((folder / "held-out-short.json").read_text())["overrides"][-1] == "world.args.max_steps=2"
    for kind, content in figures.items():
        assert (folder / f"held-out.{kind}").read_bytes() == content
    assert "earlier results of held-out, obtained with other overrides," in evaluate("world.args.max_steps=2")
    for kind, content in figures.items():
        assert (folder / "replaced" / f"held-out-1.{kind}").read_bytes() == content
        assert (folder / f"held-out.{kind}").read_bytes() != content
    (folder / "held-out.json").write_text("{}")
    assert "with a different version" in evaluate()
    assert (folder / "replaced" / "held-out-2.json").read_text() == "{}"
