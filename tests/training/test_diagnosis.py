"""Signs that a run is not learning, in planted metrics and in short runs."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from groundling.algorithms.rollout import Rollout
from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.envs.text_episode import TextObservation
from groundling.io.row_files import RowFile
from groundling.policies.policy import RandomPolicy
from groundling.reports.page import write_report
from groundling.training.build import make_policy, world_of
from groundling.training.diagnosis import FILE, DiagnosisLog, findings, measure, table_of
from groundling.training.train import train

_UNIFORM = math.log(6)
_HEALTHY = {
    "entropy": 1.5,
    "uniform_entropy": _UNIFORM,
    "success_rate": 0.2,
    "approx_kl": 0.01,
    "grad_norm": 0.4,
    "learning_rate": 1e-4,
    "episodes": 40,
    "steps": 1280.0,
    "equal_rewards": 0.0,
    "equal_groups": 0.2,
    "information": 0.1,
    "mean_entropy": 1.6,
    "largest_share": 0.3,
}


def _found(changes: dict[str, Any], *overrides: str) -> list[tuple[str, ...]]:
    return [tuple(one) for one in findings(_HEALTHY | changes, compose("text", list(overrides)))]


@pytest.mark.parametrize(
    ("changes", "overrides", "symptom", "evidence", "change"),
    [
        (
            {"entropy": 0.061},
            ["policy.id=action_scoring"],
            "hardly explores",
            "entropy 0.061 is 3% of uniform, success 0.20",
            "policy.id=action_writing",
        ),
        ({"entropy": 0.1}, [], "hardly explores", "6% of uniform", "policy.args.temperature=2"),
        ({"entropy": 0.01, "uniform_entropy": None}, [], "hardly explores", "0.01 per token", "temperature"),
        (
            {"entropy": 0.01, "uniform_entropy": None},
            ["policy.id=token", "policy.args={generation: null}"],
            "hardly explores",
            "0.01 per token",
            "generation.temperature=2",
        ),
        ({"equal_rewards": 1.0}, [], "all rewards are equal", "40 episodes, reward env", "cloning.episodes"),
        ({"equal_groups": 0.95}, ["world.group_size=8"], "groups", "95% of the groups of 8", "world.group_size=16"),
        ({"grad_norm": 900.0}, [], "gradients explode", "norm 900, clipped to 0.5", "scale"),
        ({"grad_norm": 1e-9}, [], "gradients vanish", "norm 1e-09", "temperature"),
        (
            {"information": 0.001, "mean_entropy": 0.8, "largest_share": 0.85},
            [],
            "hardly depends on the observation",
            "one action averages 0.85",
            "policy.args.calibration=256",
        ),
        ({"learning_rate": 1e-6}, ["model.dtype=bfloat16"], "rounding", "bfloat16 rounds", "model.dtype=float32"),
        (
            {"approx_kl": 1e-7, "learning_rate": 1e-6},
            ["algorithm.args.learning_rate=1e-6"],
            "hardly moves",
            "approx_kl 1e-07 at learning rate 1e-06",
            "algorithm.args.learning_rate=1e-05",
        ),
        (
            {"approx_kl": 7.6, "entropy": 0.1},
            [],
            "updates replace",
            "approx_kl 8",
            "algorithm.args.learning_rate=1e-05",
        ),
        ({"tokens_per_character": 2.1}, [], "lacks tokens for the env's script", "2.1 tokens per", "model.path"),
        ({"unknown_tokens": 0.3}, [], "lacks tokens for the env's script", "30% are unknown", "model.path"),
    ],
)
def test_a_planted_symptom_is_found_alone(
    changes: dict[str, Any], overrides: list[str], symptom: str, evidence: str, change: str
) -> None:
    ((found, shown, advice),) = _found(changes, *overrides)
    assert symptom in found and evidence in shown and change in advice


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({}, []),
        ({"entropy": 0.05, "success_rate": 0.97}, []),  # solved
        ({"grad_norm": 441.0}, []),  # clipped, and learns
        ({"grad_norm": 3000.0, "value_loss": 44_000.0}, []),  # of a critic that learns large returns
        ({"equal_rewards": 1.0, "episodes": 3}, []),  # too few episodes have ended
        ({"learning_rate": 1e-6}, ["model.dtype=bfloat16", "model.lora={r: 8}"]),  # adapters use float32
        ({"approx_kl": 0.0}, ["algorithm.args.minibatch_size=1280", "algorithm.args.epochs=1"]),  # one minibatch
        (
            {"approx_kl": 0.0, "steps": 100.0},
            ["algorithm.args.epochs=1"],
        ),  # episodes ended early, so one is sufficient
        ({"information": 0.0, "mean_entropy": 1.75}, []),  # nearly uniform, as it should be for a new model
    ],
)
def test_nothing_is_found_in_a_healthy_run(changes: dict[str, Any], overrides: list[str]) -> None:
    assert _found(changes, *overrides) == []


def test_single_texts_are_no_groups_without_variance() -> None:
    assert findings(_HEALTHY | {"equal_groups": 1.0}, compose("writing", ["world.texts_per_prompt=1"])) == []
    assert findings(_HEALTHY | {"equal_groups": 1.0}, compose("writing", ["world.texts_per_prompt=4"]))


def test_nothing_is_found_without_metrics() -> None:
    assert findings({}, compose("text")) == []


def test_a_narrow_table_contains_the_whole_setting() -> None:
    generation = ["policy.id=token", "policy.args={generation: null}"]
    found = findings(_HEALTHY | {"entropy": 0.01, "uniform_entropy": None}, compose("text", generation))
    shown = io.StringIO()
    Console(file=shown, width=80).print(table_of(found, "signs"))
    assert "policy.args.generation.temperature=2" in shown.getvalue() and "…" not in shown.getvalue()


def _rollout(rewards: list[list[float]], **options: Any) -> Rollout:
    of = torch.tensor(rewards)
    zeros = torch.zeros_like(of)
    done = zeros.bool()
    return Rollout(
        [None] * of.numel(), zeros.long(), zeros, zeros, of, done, zeros[0], [None] * of.shape[1], **options
    )


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        ([[0, 0], [0, 0]], {}, {"equal_rewards": 1}),
        ([[-1, -1], [-1, -1]], {}, {"equal_rewards": 0}),  # shorter episodes are better
        ([[1, 1], [2, 2]], {"sequences": True}, {"equal_rewards": 1}),
        ([[1, 1, 0, 2]], {"sequences": True, "groups": torch.tensor([0, 0, 1, 1])}, {"equal_groups": 0.5}),
    ],
)
def test_a_rollout_is_measured(
    rewards: list[list[float]], options: dict[str, Any], expected: dict[str, float]
) -> None:
    found = measure(RandomPolicy(), _rollout([[float(one) for one in row] for row in rewards], **options), 6)
    assert expected.items() <= found.items() and found["uniform_entropy"] == pytest.approx(_UNIFORM)


@pytest.mark.parametrize(
    ("goal", "actions", "is_known"),
    [
        ("go to the red ball", ("turn left", "go forward"), True),
        ("7", ("1", "2"), True),  # special tokens are not counted
        ("πήγαινε στην κόκκινη μπάλα", ("στρίψε αριστερά", "προχώρα"), False),
        ("去红色的球", ("左转", "前进"), False),
    ],
)
def test_the_tokens_of_the_envs_texts_are_measured(goal: str, actions: tuple[str, ...], is_known: bool) -> None:
    config = compose("text", ["policy.args.value_hidden_sizes=[8]", "device=cpu"])
    policy = make_policy(config.policy, config.model, config.algorithm, world_of(config), learns=True)
    seen = [TextObservation(goal, ((goal,),), (), actions, {})] * 2
    figures = measure(policy, replace(_rollout([[0.0, 1.0]]), observations=seen), None)
    measured = {name: figures[name] for name in ("tokens_per_character", "unknown_tokens")}
    assert (findings(_HEALTHY | measured, config) == []) == is_known


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Train three updates at a temperature that fixes the actions; return the folder and the terminal output."""
    folder = tmp_path_factory.mktemp("runs") / "stuck"
    small = ["world.num_envs=2", "world.num_steps=4", "device=cpu", "training.steps=24"]
    words = [*small, "policy.args.temperature=0.001", "policy.args.value_hidden_sizes=[8]", f"run_dir={folder}"]
    shown = io.StringIO()
    assert train(compose("text", words), Console(file=shown, width=200))
    return folder, shown.getvalue()


def test_a_stuck_run_is_diagnosed_once_in_the_terminal(stuck: tuple[Path, str]) -> None:
    folder, shown = stuck
    assert shown.count("the policy hardly explores") == 1 and "policy.args.temperature=0.002" in shown
    assert "step 16/24 · no episode has ended, reward per step 0.00 · " in shown
    assert shown.index("step 16/24") < shown.index("hardly explores") < shown.index("step 24/24")
    rows = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2] and rows[0]["largest_share"] > 0.3


def test_a_stuck_run_is_diagnosed_by_the_command_and_the_report(
    stuck: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = stuck
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["diagnose", str(folder)]) == 0
    assert "the policy hardly explores" in capsys.readouterr().out
    page = write_report([folder], folder / "report.html").read_text()
    assert '<td class="wide">the policy hardly explores</td>' in page
    assert (
        '<div class="scroll plot">' not in page.partition("Learning curve")[2].partition("</section>")[0]
    )  # it scales
    (folder / FILE).unlink()
    rows = [{**json.loads(line), "entropy": 1.0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["diagnose", str(folder)]) == 0
    assert "nothing found in updates 1 to 2: entropy 1" in capsys.readouterr().out


def _rows(returns: list[float], spread: float = 0.3, highest: float = 1.0, step: int = 1280) -> list[dict[str, Any]]:
    return [
        {
            "update": i,
            "step": i * step,
            "episodes": 40 * i,
            "episode_length_max": 64,
            "return_mean": one,
            "return_std": spread,
            "return_min": 0.0,
            "return_max": highest,
        }
        for i, one in enumerate(returns, 1)
    ]


@pytest.mark.parametrize(
    ("experiment", "rows", "symptom", "evidence", "change"),
    [
        ("text", _rows([0.5, 0.4, 0.3, 0.2, 0.1]), "return fell", "0.5 in the first 40 episodes, 0.1", "a lower"),
        ("text", _rows([0.95, 0.9, 0.8, 0.7, 0.6]), "return fell", "-0.48 to -0.22", "a lower"),  # from near the top
        ("text", _rows([0.2, 0.3, 0.2, 0.3, 0.25]), "return did not clearly rise", "-0.081 to 0.18", "training.steps"),
        ("text", _rows([0.0] * 10, 0.0, 0.0), "return did not clearly rise", "0 in the last 80", "training.steps"),
        ("writing", _rows([0.2] * 5), "reward did not clearly rise", "0.2 in the first 40 texts", "training.steps"),
    ],
)
def test_a_return_that_does_not_rise_is_found(
    experiment: str, rows: list[dict[str, Any]], symptom: str, evidence: str, change: str
) -> None:
    ((found, shown, advice),) = findings(
        _HEALTHY | {"rows": rows}, compose(experiment, ["world.num_envs=8"] if experiment == "text" else [])
    )
    assert symptom in found and evidence in shown and change in advice


@pytest.mark.parametrize(
    "rows",
    [
        _rows([0.2, 0.2, 0.3, 0.4, 0.4]),
        _rows([0.9, 0.92, 0.88, 0.9, 0.9]),  # near the top from the start
        _rows([0.5, 0.4, 0.3, 0.2]),  # too few updates
        [row | {"episodes": row["update"]} for row in _rows([0.5, 0.4, 0.3, 0.2, 0.1])],  # too few episodes
        [row | {"return_mean": None} for row in _rows([0.0] * 10)],  # no episode has ended
        _rows([0.9, 0.9, 0.9, 0.9, 0.2, 0.2, 0.3, 0.4, 0.5], step=100),  # at first, only short episodes have ended
    ],
)
def test_a_return_that_rises_or_is_unknown_is_not_found(rows: list[dict[str, Any]]) -> None:
    assert findings(_HEALTHY | {"rows": rows}, compose("text", ["world.num_envs=8"])) == []


def test_a_return_that_is_no_reward_may_fall() -> None:
    rows = {"rows": _rows([0.5, 0.4, 0.3, 0.2, 0.1])}
    count = ["world.num_envs=8", "reward.count={coefficient: 1}"]
    assert findings(_HEALTHY | rows, compose("text", count))
    assert findings(_HEALTHY | rows, compose("text", [*count, "~reward.env"])) == []


def test_a_return_that_does_not_rise_is_reported_at_the_end(tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    config = compose("text", ["world.num_envs=8", "training.steps=6400"])
    log = DiagnosisLog(config, tmp_path, RowFile(tmp_path / FILE, 0), console.print)
    with (tmp_path / "metrics.jsonl").open("w", buffering=1) as file:
        for row in _rows([0.5, 0.4, 0.3, 0.2, 0.1]):
            assert not shown.getvalue()
            file.write(json.dumps(row) + "\n")
            log.log(row)
    line = (
        "the return fell: 0.5 in the first 40 episodes, 0.1 in the last 40, 95% interval of the change -0.53 to -0.27"
    )
    assert shown.getvalue() == f"{line}; try a lower algorithm.args.learning_rate\n"
