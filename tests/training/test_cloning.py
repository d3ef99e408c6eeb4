"""Behavioural cloning, from `groundling collect` to `groundling evaluate`."""

import json
import math
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from groundling.algorithms import Rollout, create
from groundling.cli.main import main
from groundling.config.schema import Config, TrainingConfig
from groundling.errors import ConfigError, RunError
from groundling.evaluation.target import find
from groundling.io.row_files import read_rows
from groundling.registry import ComponentConfig
from groundling.runtime.processes import Processes
from groundling.training.checkpoint import latest
from groundling.training.tracking import read_metrics
from groundling.training.train import train
from groundling.worlds.text.config import TextConfig, TextEvaluation
from groundling.worlds.text.dataset import count_transitions
from groundling.worlds.text.demonstrations import Demonstrations
from tests.building import algorithm_of, policy_of
from tests.runs import error_of
from tests.thorough import THOROUGH, thorough

_ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "bot"
    overrides = ["world.env=BabyAI-GoToObj-v0", "world.history=2", "evaluation.num_envs=4", "device=cpu"]
    target = find("expert", overrides, print)
    target.world.record_episodes(target.demonstrator(), 12, folder)
    return folder


def _config(dataset: Path, run_dir: Path, objective: str = "text", policy: str = "action_scoring") -> Config:
    heads = {"action_scoring": {"value_hidden_sizes": [8]}, "action_head": {"hidden_sizes": [8]}}
    small = {"embedding_size": 8, "hidden_size": 8}
    args = {"objective": objective, "learning_rate": 3e-3, "minibatch_size": 8, "micro_batch_size": 4}
    return Config(
        name="clone",
        run_dir=str(run_dir),
        device="cpu",
        world=TextConfig(env="BabyAI-GoToObj-v0", num_envs=8, history=2, num_steps=2, dataset=str(dataset)),
        policy=ComponentConfig(id=policy, args=heads.get(policy, small)),
        algorithm=ComponentConfig(id="bc", args={**args, "learning_rate_schedule": "constant", "warmup": 0.0}),
        training=TrainingConfig(steps=96),
        evaluation=TextEvaluation(),
    )


@pytest.mark.parametrize(
    ("policy", "objective"),
    [
        ("action_scoring", "text"),
        ("drrn", "choice"),
        *thorough(("action_scoring", "choice"), ("action_head", "choice")),
    ],
)
def test_the_loss_falls(policy: str, objective: str, dataset: Path, tmp_path: Path) -> None:
    assert train(_config(dataset, tmp_path, objective, policy), Console(quiet=True))
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [16, 32, 48, 64, 80, 96]
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["probability"] > rows[0]["probability"]
    assert rows[0]["success_rate"] is None and rows[-1]["episodes"] == 0


def test_a_clone_is_evaluated_and_reported(dataset: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ["world.env=BabyAI-GoToObj-v0", "world.history=2", "world.num_envs=8", "model.path=starter"]
    arguments += [
        *(f"world.dataset={dataset}", "training.epochs=null", "training.steps=40", "device=cpu"),
        *("world.args={max_steps: 8}", f"run_dir={run_dir}"),
    ]
    assert main(["train", "glam/bc", *arguments, "--dry-run"]) == 0 and not run_dir.exists()
    assert main(["train", "glam/bc", *arguments]) == 0
    assert main(["evaluate", str(run_dir), "--episodes", "2", "evaluation.num_envs=2"]) == 0
    figures = json.loads((run_dir / "evaluation" / "held-out.json").read_text())
    assert list(figures["agents"]) == ["trained", "zero-shot", "random", "expert"]
    assert main(["report", str(run_dir)]) == 0
    assert "log-likelihood" in (run_dir / "report.html").read_text()


def test_held_out_data_is_measured_and_not_learnt(tmp_path: Path) -> None:
    overrides = ["world.env=BabyAI-GoToObj-v0", "world.history=2", "evaluation.num_envs=4", "device=cpu"]
    folder, run_dir = tmp_path / "bot", tmp_path / "run"
    target = find("expert", overrides, print)
    target.world.record_episodes(target.demonstrator(), 8, folder, validation_fraction=0.25)
    config = _config(folder, run_dir, "choice", "drrn")
    config.evaluation = TextEvaluation(every=2)
    assert train(
        config.model_copy(update={"training": config.training.model_copy(update={"steps": 48})}), Console(quiet=True)
    )
    assert train(config, Console(quiet=True))  # resumes
    rows = read_rows(run_dir / "validation.jsonl")
    assert [(row["update"], row["step"]) for row in rows] == [(0, 0), (2, 32), (3, 48), (4, 64), (6, 96)]
    assert rows[-1]["metrics"]["loss"] < rows[0]["metrics"]["loss"]

    count = count_transitions(folder, "validation")
    held_out = Demonstrations(folder, 1, slice(0, 1), _ACTIONS, 2, seed=1, split="validation").rollout(count)
    policy = policy_of(config, latest(run_dir / "checkpoints", print))
    log_probs = policy.outputs(held_out.observations).log_probs  # type: ignore[union-attr]
    shown = held_out.actions.flatten()
    metrics = rows[-1]["metrics"]
    assert metrics["loss"] == pytest.approx(-log_probs[torch.arange(count), shown].mean().item(), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx((log_probs.argmax(-1) == shown).float().mean().item())


def test_a_corrupt_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "data" / "validation-00000000-00000001.parquet"
    file.parent.mkdir()
    file.write_bytes(b"not parquet")
    with pytest.raises(RunError, match="cannot be read"):
        count_transitions(tmp_path, "validation")


def test_every_epoch_shows_each_transition_once(dataset: Path) -> None:
    rows = Demonstrations(dataset, 1, slice(0, 1), _ACTIONS, 2, seed=1)
    total = rows.state_dict()[0]["rows"]
    first = rows.rollout(3)
    state = json.loads(json.dumps(rows.state_dict()))
    rest = rows.rollout(2 * total - 3)
    observations = [*first.observations, *rest.observations]
    actions = [*first.actions.flatten().tolist(), *rest.actions.flatten().tolist()]
    epochs = [list(zip(observations, actions, strict=True))[i : i + total] for i in (0, total)]

    def sorted_(epoch: list) -> list:
        return sorted((o.goal, o.descriptions, o.past_actions, action) for o, action in epoch)

    assert sorted_(epochs[0]) == sorted_(epochs[1]) and epochs[0] != epochs[1]
    again = Demonstrations(dataset, 1, slice(0, 1), _ACTIONS, 2, seed=1)
    again.load_state_dict(state)
    assert again.rollout(2 * total - 3).observations == rest.observations
    assert Demonstrations(dataset, 1, slice(0, 1), _ACTIONS, 2, seed=2).rollout(3).observations != first.observations
    short = Demonstrations(dataset, 4, slice(0, 4), _ACTIONS, 1, seed=1).rollout(5)
    assert short.actions.shape == (5, 4)
    assert all(len(o.descriptions) == 1 and not o.past_actions for o in short.observations)
    state[0]["rows"] += 1
    with pytest.raises(RunError, match="transitions"):
        again.load_state_dict(state)


def test_text_and_choice_objectives_differ_in_normalisation(dataset: Path, tmp_path: Path) -> None:
    losses = {}
    for objective in ("text", "choice"):
        config = _config(dataset, tmp_path, objective)
        policy = policy_of(config)
        algorithm = algorithm_of(config, policy)
        rollout = Demonstrations(dataset, 8, slice(0, 8), _ACTIONS, 2, seed=1).rollout(1)
        prompts = policy.prompts(rollout.observations)
        assert prompts is not None
        with torch.no_grad():
            scores = torch.stack(policy.lm.score(prompts, _ACTIONS))  # type: ignore[union-attr, operator]
        if objective == "choice":
            scores = scores.log_softmax(-1)
        expected = -scores.gather(1, rollout.actions[0][:, None]).mean().item()
        assert algorithm.measure(policy, rollout)["loss"] == pytest.approx(expected, rel=1e-4)
        losses[objective] = algorithm.update(policy, rollout, generator=torch.Generator())["loss"]
        assert losses[objective] == pytest.approx(expected, rel=1e-4)
    assert losses["choice"] < losses["text"]


def test_invalid_cloning_is_reported(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*overrides: str, experiment: str = "glam/bc") -> str:
        args = ["world.env=BabyAI-GoToObj-v0", "world.history=2", f"run_dir={tmp_path / 'run'}", "device=cpu"]
        return error_of(["train", experiment, *args, "model.path=starter", *overrides], capsys)

    data = f"world.dataset={dataset}"
    assert "world.dataset=FOLDER" in error()
    assert "world.dataset must be null" in error(data, "~world.args", experiment="demo-easy")
    assert "groundling collect" in error(f"world.dataset={tmp_path}")
    assert "world.history=2" in error(data, "world.history=3")
    assert "select the dataset's actions" in error(data, "world.language=french")
    assert "objective=choice" in error(data, "policy.id=action_head")
    assert "generates turns: set algorithm.args.objective=choice" in error(data, "policy.id=action_generating")
    other = "has episodes of BabyAI-GoToObj-v0, but world.env=BabyAI-GoToLocal-v0"
    assert other in error(data, "world.env=BabyAI-GoToLocal-v0")
    assert "it needs symbols" in error(data, "policy.id=symbolic")
    assert "warmup" in error(data, "algorithm.args.warmup=1")
    assert "objective" in error(data, "algorithm.args.objective=both")
    broken = tmp_path / "broken" / "data" / "train-0.parquet"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"PAR1")
    assert "cannot read" in error(f"world.dataset={tmp_path / 'broken'}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"goal": ["go"]}), broken)
    assert "expected the columns goal" in error(f"world.dataset={tmp_path / 'broken'}")


def test_a_loss_that_is_not_finite_spoils_nothing(dataset: Path, tmp_path: Path) -> None:
    config = _config(dataset, tmp_path, "choice", "drrn")
    policy = policy_of(config)
    algorithm = algorithm_of(config, policy)
    rollout = Demonstrations(dataset, 8, slice(0, 8), _ACTIONS, 2, seed=1).rollout(1)
    with torch.no_grad():
        next(policy.parameters()).fill_(torch.nan)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    with pytest.raises(RunError, match="before the weights were corrupted"):
        algorithm.update(policy, rollout, generator=torch.Generator())
    assert all(p.equal(before[name]) or p.isnan().all() for name, p in policy.named_parameters())
    with pytest.raises(ConfigError, match="weight_decay"):
        create("bc", weight_decay=-1)


@THOROUGH
def test_passes_over_the_data_decide_the_length(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in GLAM's cloning, there are passes x ceil(transitions / batch) optimizer steps."""
    total = count_transitions(dataset)
    data = ["world.env=BabyAI-GoToObj-v0", "world.history=2", f"world.dataset={dataset}", "device=cpu"]
    words = [*data, "model.path=starter", f"run_dir={tmp_path}/run"]
    assert main(["train", "glam/bc", *words, "--dry-run"]) == 0
    assert "updates 1 of" in " ".join(capsys.readouterr().out.split())

    config = _config(dataset, tmp_path / "small", "choice", "drrn")  # updates of 16, minibatches of 8
    config.training = TrainingConfig(epochs=2)
    steps: list[int] = []
    shown = Demonstrations.collect

    def collect(self: Demonstrations, *args: Any, **settings: Any) -> Any:
        rollout, episodes = shown(self, *args, **settings)
        steps.append(len(rollout.elements(1)[0]))
        return rollout, episodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Demonstrations, "collect", collect)
        assert train(config, Console(quiet=True))
    one_pass = [16] * (total // 16) + ([total % 16] if total % 16 else [])
    assert total % 16 and steps == 2 * one_pass
    assert [row["step"] for row in read_metrics(tmp_path / "small")] == list(accumulate(steps))

    whole = Demonstrations(dataset, 5, slice(0, 5), _ACTIONS, 2, seed=1, num_steps=3)
    shares = [
        Demonstrations(dataset, 5, Processes(rank, 2).share(5), _ACTIONS, 2, seed=1, num_steps=3) for rank in (0, 1)
    ]
    for one in (whole, *shares):
        assert one.in_passes(2) == (2 * total, 2 * math.ceil(total / 15))
    for _ in range(math.ceil(total / 15)):
        rollout, parts = whole.rollout(3), [one.rollout(3) for one in shares]
    joined = Rollout.concatenate(parts)  # one of the processes may have no mask
    assert rollout.num_transitions == (total % 15 or 15) == joined.num_transitions
    assert joined.elements(1)[0] == rollout.elements(1)[0]
