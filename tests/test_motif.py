"""Motif's four phases as in docs/motif.md, at a small scale, and runs whose processes die."""

import csv
import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from groundling.cli.main import main
from groundling.config.compose import compose
from groundling.envs.nethack import TASKS
from groundling.envs.seeds import held_out_seed
from groundling.judges import open_pairs
from groundling.training.tracking import read_metrics
from tests.launching import Forked
from tests.runs import error_of
from tests.thorough import THOROUGH

DOCS = Path(__file__).resolve().parents[1] / "docs" / "motif.md"
_WORLD = ["world.args.max_episode_steps=12", "device=cpu"]
_NETWORK = "policy.args={hidden_size: 8, recurrence: 4}"
_SMALL = [*_WORLD, "world.num_envs=2", "world.num_workers=0", "world.ahead=false", "algorithm.args.minibatch_size=16"]
_SMALL += ["training.steps=32", "world.num_steps=8", "training.checkpoint_every=1"]
_ADDED = {
    "collect": [*_WORLD, "--stride", "2"],
    "annotate": [],
    "distill": ["epochs=2", "device=cpu"],
    "train": [*_SMALL, _NETWORK],
    "evaluate": [*_WORLD, "evaluation.num_envs=2"],
    "watch": [*_WORLD, "--fast"],
    "report": [],
    "study": [
        *_SMALL,
        *(f"arms.{arm}.{_NETWORK}" for arm in ("intrinsic", "extrinsic")),
        *("seeds=1,2", "episodes=2", "--jobs", "1"),
    ],
}
"""Overrides that reduce the size of a documented command."""


def _documented() -> list[list[str]]:
    """Return the arguments of ``groundling`` for each command in a code block."""
    blocks = re.findall(r"^```\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("groundling ")]


def _small(words: list[str]) -> list[str]:
    text = [re.sub(r"^(50000|50)$", {"50000": "40", "50": "3"}.get(word, ""), word) for word in words]
    return [*text, *_ADDED[words[0]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder in which the documented commands were run, except those of the root envs."""
    folder = tmp_path_factory.mktemp("motif")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for words in _documented():
            if not any("NetHack" in word for word in words) or words[0] == "collect":
                assert main(_small(words)) == 0, words
        yield folder
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def reward_model(folder: Path) -> Path:
    return folder / "runs" / "motif" / "reward"


def test_every_phase_writes_the_input_of_the_next(folder: Path) -> None:
    motif = folder / "runs" / "motif"
    pairs = open_pairs(motif / "pairs")
    assert len(pairs) == 40 and set(pairs.preferences("rules").tolist()) <= {0, 1, 2}
    assert (motif / "reward" / "reward_model.safetensors").exists()
    rows = read_metrics(motif / "agent")
    assert [row["step"] for row in rows] == [16, 32] and rows[1]["intrinsic_return"] is not None
    page = (motif / "agent" / "report.html").read_text(encoding="utf-8")
    assert page.count('alt="what the agent sees at step') == 6 and "normalised reward" in page and "explorer" in page
    returns = json.loads((motif / "returns.json").read_text(encoding="utf-8"))
    (curve,) = returns["NetHackScore-v1"]["motif-laptop"]
    assert curve["seed"] == 1 and curve["timesteps"] == [r["step"] for r in rows if r["return_mean"] is not None]


def test_a_gif_shows_every_step_and_its_figures(folder: Path) -> None:
    with Image.open(folder / "runs" / "motif" / "agent.gif") as film:
        assert film.n_frames > 20  # two episodes of at most twelve steps, unless the hero dies
        width, height = film.size
    assert height > width * 24 / 80 * 1.5  # more lines than the terminal's 24


def test_evaluations_play_the_same_held_out_episodes(folder: Path) -> None:
    evaluation = folder / "runs" / "motif" / "agent" / "evaluation"
    held_out = json.loads((evaluation / "held-out.json").read_text())
    assert list(held_out["agents"]) == ["trained", "random", "explorer"]
    with (evaluation / "held-out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for agent in held_out["agents"]:
        agent_rows = [row for row in rows if row["agent"] == agent]
        assert [int(row["seed"]) for row in agent_rows] == [held_out_seed(k) for k in range(3)]
        mean = sum(float(row["return"]) for row in agent_rows) / 3
        figures = held_out["agents"][agent]["figures"]
        assert figures["return"]["value"] == pytest.approx(mean, rel=1e-4, abs=1e-4)
        assert figures["return"]["low"] <= figures["return"]["value"] <= figures["return"]["high"]
        assert {"score", "depth", "gold", "experience_level", "length", "messages"} <= figures.keys()


def test_a_model_card_has_the_figures_with_their_intervals(folder: Path, tmp_path: Path) -> None:
    agent = folder / "runs" / "motif" / "agent"
    assert main(["publish", str(agent), "--output", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| metric | trained | random | explorer |" in card and "| episodes | 3 | 3 | 3 |" in card
    figures = json.loads((agent / "evaluation" / "held-out.json").read_text())["agents"]["trained"]["figures"]
    score = "{value:.4g} [{low:.4g}, {high:.4g}]".format(**figures["score"])
    assert f"| score | {score} | " in card


def test_a_published_agent_plays_elsewhere_and_brings_its_reward_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = (folder / "runs" / "motif" / "agent").resolve()
    assert main(["publish", str(agent), "--output", str(tmp_path / "out")]) == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").rename(tmp_path / "elsewhere" / "copy")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", "copy", "--episodes", "3", *_ADDED["evaluate"]]) == 0
    there = json.loads(Path("copy/evaluation/held-out.json").read_text())
    assert there["agents"] == json.loads((agent / "evaluation" / "held-out.json").read_text())["agents"]


def test_the_study_reports_every_arm(folder: Path) -> None:
    results = folder / "results" / "motif"
    summary = json.loads((results / "summary.json").read_text())
    assert not summary["unfinished"]
    arms = {(line["arm"], line["figure"]): line for line in summary["figures"]}
    for arm in ("intrinsic", "extrinsic", "random", "explorer"):
        assert len(arms[arm, "score"]["of_seeds"]) == 2 and (arm, "intrinsic_return") in arms
    with (results / "episodes.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == "extrinsic"]
    assert len(rows) == 4
    mean = sum(float(row["score"]) for row in rows) / 4
    assert arms["extrinsic", "score"]["estimate"]["value"] == pytest.approx(mean)
    assert (results / "training.png").exists() and (results / "held-out.png").exists()
    assert "explorer" in (results / "README.md").read_text(encoding="utf-8")


@THOROUGH
def test_every_root_env_has_a_command_that_trains(folder: Path, tmp_path: Path) -> None:
    trained = []
    for words in _documented():
        task = next((word.removeprefix("world.env=") for word in words if word.startswith("world.env=")), "")
        if words[0] == "train" and task in TASKS:
            assert main([*_small(words), "training.steps=16", f"run_dir={tmp_path / task}"]) == 0
            trained.append(task)
    assert sorted(trained) == sorted(TASKS)


def test_a_trained_agent_records_pairs_and_is_watched_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = str(folder / "runs" / "motif" / "agent")
    for output in ("a", "b"):
        words = ["collect", agent, "--pairs", "6", "--stride", "1", "--format", "parquet"]
        assert main([*words, "--output", str(tmp_path / output), *_WORLD]) == 0
    first, second = (open_pairs(tmp_path / output) for output in "ab")
    assert (first.messages == second.messages).all()
    capsys.readouterr()
    for _ in range(2):
        assert main(["watch", agent, "--fast", *_WORLD]) == 0
    stdout = capsys.readouterr().out
    assert "intrinsic" in stdout and "Hello" in stdout and "distinct messages" in re.sub(r"\s+", " ", stdout)
    half = len(stdout) // 2
    assert stdout[:half] == stdout[half:]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "motif/laptop", "run_dir=none", "reward.reward_model.args.path=none/there"], "distill"),
        (["collect", "random", "world.env=NetHackScore-v1", "--episodes", "3", "--output", "x"], "--pairs"),
        (["collect", "random,explorer", "--pairs", "3", "--output", "x"], "different worlds"),
        (["collect", "random", "--output", "x"], "--episodes"),
        (["evaluate", "random", "world.env=NetHackScore-v1", "--suite", "french"], "held-out"),
        (["evaluate", "expert", "world.env=NetHackScore-v1"], "expert cannot play"),
        (["evaluate", "explorer", "world.env=BabyAI-GoToLocal-v0"], "explorer cannot play BabyAI-GoToLocal-v0"),
    ],
)
def test_errors_are_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(words, capsys)


def _training(run_dir: Path, reward_model: Path, *more: str) -> list[str]:
    given = [f"reward.reward_model.args.path={reward_model}", f"run_dir={run_dir}"]
    return ["train", "motif/laptop", *_SMALL, _NETWORK, *given, *more]


def _wait_for_rows(run_dir: Path, count: int, process: Any) -> None:
    deadline = time.monotonic() + 120
    while not (run_dir / "metrics.jsonl").exists() or len(read_metrics(run_dir)) < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_training_resumes_from_its_last_checkpoint(
    tmp_path: Path, reward_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "log").open("w") as log:
        process = Forked(_training(tmp_path / "run", reward_model, "training.steps=100000"), log)
    _wait_for_rows(tmp_path / "run", 4, process)
    process.kill()
    process.wait()
    last = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    steps = 16 * (last + 2)
    assert main(_training(tmp_path / "run", reward_model, f"training.steps={steps}")) == 0
    assert f"resuming after update {last}" in capsys.readouterr().out
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(16, steps + 1, 16))  # each appears once


def test_the_originals_flags_name_existing_keys() -> None:
    """Each key on the migration page for the original's flags exists in `motif/score` and has a value."""
    page = (Path(__file__).parents[1] / "docs" / "migration" / "motif.md").read_text()
    table = page.partition("Train an agent: `scripts.main`")[2].partition("\n##")[0]
    keys = set(re.findall(r"`((?:world|algorithm|policy|reward|training)\.[\w.]+)`", table))
    keys -= {"world.args.save_ttyrec_every", "world.args.savedir"}  # arguments of nle, whose env accepts any
    values = {"algorithm.id": "appo", "world.env": "NetHackOracle-v1", "policy.args.core": "lstm"}
    values |= {"training.wandb": "p", "reward.reward_model.args.path": "p"}
    values |= {"reward.reward_model.args.normalize": "true", "world.ahead": "true"}
    values |= {"reward.reward_model.args.threshold_quantile": 0.5, "training.steps": 64, "algorithm.args.gamma": 1}
    assert len(keys) > 25
    compose("motif/score", [f"{key}={values.get(key, 32)}" for key in sorted(keys)])
