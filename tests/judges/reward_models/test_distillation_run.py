import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from groundling.cli.distill import add_parser
from groundling.cli.main import main
from groundling.errors import ConfigError, GroundlingError, RunError
from groundling.io.files import LOCK, locked
from groundling.judges import MessagePairs, open_pairs
from groundling.judges.reward_models import load_reward_model
from groundling.registry import ComponentConfig
from groundling.training.distillation import DistillationConfig, DistillationRun, distill, read_pairs
from groundling.training.tracking import read_metrics
from groundling.training.verify import verify
from tests.judges.reward_models.reward_reference import messages_of, random_pairs
from tests.runs import TIME_KEYS

TIMES = (*TIME_KEYS, "pairs_per_second")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return 200 pairs, some of which a rule prefers; every tenth has no answer."""
    pairs = random_pairs(200, 0, distinct=25)
    folder = tmp_path / "pairs"
    made = MessagePairs.create(folder, {"message": messages_of(pairs)})
    codes = np.select([pairs.targets[:, 0] == 1, pairs.targets[:, 0] == 0], [0, 1], 2)
    codes[::10] = 3
    made.write_preferences("rule", codes)
    return folder


def _config(dataset: Path, **options: object) -> DistillationConfig:
    usual = {"learning_rate": 1e-3, "batch_size": 32, "epochs": 3, "device": "cpu"}
    return DistillationConfig(dataset=str(dataset), preferences="rule", **{**usual, **options})


def _rows(folder: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_metrics(folder)]


def _distill(config: DistillationConfig, output: Path) -> None:
    distill(config, output, Console(quiet=True), pytest.fail)


def test_an_interrupted_distillation_ends_as_an_uninterrupted_one(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    _distill(_config(dataset), whole)
    epochs = []

    def epoch(self: DistillationRun, on_batch: object) -> dict[str, object]:
        if len(epochs) == 2:
            torch.rand(1)  # a killed epoch has sampled numbers
            raise KeyboardInterrupt
        epochs.append(1)
        return original(self, on_batch)

    original = DistillationRun.epoch
    monkeypatch.setattr(DistillationRun, "epoch", epoch)
    with pytest.raises(KeyboardInterrupt):
        _distill(_config(dataset), torn)
    assert not (torn / "reward_model.json").exists()
    monkeypatch.undo()
    _distill(_config(dataset), torn)
    weights = [load_file(folder / "reward_model.safetensors") for folder in (whole, torn)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert _rows(whole) == _rows(torn)
    assert [row["update"] for row in _rows(whole)] == [0, 1, 2, 3]
    _distill(_config(dataset), torn)  # training is complete, so nothing changes
    assert _rows(whole) == _rows(torn)


def test_a_broken_checkpoint_is_no_fresh_start(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _distill(_config(dataset), output)
    before = _rows(output)
    (output / "checkpoints" / "000003" / "reward_model.json").write_text("{}")
    with pytest.raises(GroundlingError, match=r"only broken checkpoints \(000003\)"):
        distill(_config(dataset), output, Console(quiet=True), lambda text: None)
    assert _rows(output) == before


def test_the_files_of_a_distillation(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _distill(_config(dataset), output)
    rows = _rows(output)
    assert {"train_loss", "validation_loss", "validation_accuracy", "validation_calibration_error"} <= set(rows[-1])
    assert rows[-1]["validation_loss"] < rows[0]["validation_loss"]
    about = json.loads((output / "reward_model.json").read_text())["about"]
    assert about["training_pairs"] + about["validation_pairs"] == 180
    assert about["validation_accuracy"] == rows[-1]["validation_accuracy"]
    model, newest = load_reward_model(output), load_reward_model(output / "checkpoints" / "000003")
    assert model.version == newest.version
    assert model.normalization == newest.normalization
    assert model.normalization is not None
    assert model.normalization.mean == rows[-1]["reward_mean"]
    assert not [path for path in output.rglob("*") if path.suffix in (".pkl", ".pt", ".pth")]


@pytest.mark.parametrize("kind", ["table", "classifier", "language_model"])
def test_every_kind_is_distilled_and_read(kind: str, dataset: Path, tmp_path: Path) -> None:
    config = _config(dataset, epochs=1)
    config.model.id = kind
    config.model.args = {"hidden_sizes": [8], "train_language_model": False} if kind == "language_model" else {}
    _distill(config, tmp_path / "out")
    model = load_reward_model(tmp_path / "out")
    assert (model.normalization is None) == (kind == "classifier")
    rewards = model.rewards(read_pairs(config).captions)
    assert rewards.isfinite().all()
    if kind == "classifier":
        assert set(rewards.tolist()) <= {0.0, 1.0}
    if kind == "table":
        assert read_metrics(tmp_path / "out")[-1]["validation_accuracy"] > 0.8


def test_a_folder_of_another_reward_model_is_refused(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _distill(_config(dataset, epochs=1), output)
    with pytest.raises(ConfigError, match="learning_rate"):
        _distill(_config(dataset, epochs=1, learning_rate=1e-4), output)
    made = open_pairs(dataset)
    codes = np.array(made.preferences("rule"))
    codes[:50] = 2
    made.write_preferences("rule", codes)
    with pytest.raises(ConfigError, match="pairs="):
        _distill(_config(dataset, epochs=1), output)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="was not created by `groundling distill`"):
        _distill(_config(dataset), tmp_path / "other")


def _command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    arguments, more = parser.parse_known_args(["distill", *words])
    arguments.overrides += more  # as the command line does
    status: int = arguments.run(arguments)
    return status


def test_the_command(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    words = [str(dataset), "epochs=1", "batch_size=64", "device=cpu", "--preferences", "rule"]
    assert _command(*words, "--model", "classifier", "--output", str(output)) == 0
    assert "training pairs" in capsys.readouterr().out
    assert load_reward_model(output).id == "classifier"
    shutil.rmtree(output)
    args = ["model.args.threshold=0.25", "--output", str(output)]
    assert _command(*words, "--model", "classifier", *args) == 0
    assert load_reward_model(output).args == {"threshold": 0.25}


def test_unmeasured_figures_are_left_out(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(dataset), "epochs=1", "device=cpu", "validation_fraction=0", "--preferences", "rule"]
    assert _command(*words, "--output", str(tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "epoch 1 · loss" in out and "nan" not in out and "held-out" not in out


def test_a_distillation_is_verified(dataset: Path, tmp_path: Path) -> None:
    for model in ("motif", "table"):
        output = tmp_path / model
        _distill(_config(dataset, model=ComponentConfig(id=model)), output)
        assert [one.problem for one in verify(output) if one.problem is not None] == []
    assert main(["verify", str(tmp_path / "motif")]) == 0
    rows = (tmp_path / "motif" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "motif" / "metrics.jsonl").write_text("".join(rows[:-1]))
    assert any("but metrics.jsonl has no such row" in str(one.problem) for one in verify(tmp_path / "motif"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["epoch=1"], "did you mean 'epochs'"),
        (["epochs=many"], "epochs"),
        (["epochs=0"], "epochs must be"),
        (["fast"], "key=value"),
        (["--model", "motiv"], "did you mean 'motif'"),
        (["model.args.depth=2"], "depth"),
        (["--model", "characters", "model.args.blocks=0"], "blocks must be at least 1, got 0"),
        (["--model", "classifier", "model.args.threshold=1"], "threshold must be less than 1, got 1"),
    ],
)
def test_invalid_options_get_a_message(words: list[str], message: str, dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(GroundlingError, match=message):
        _command(str(dataset), *words, "--preferences", "rule", "--output", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_two_distillations_cannot_share_a_folder(dataset: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _distill(_config(dataset, epochs=1), output)
    rows = (output / "metrics.jsonl").read_bytes()
    with locked(output / LOCK, "is at work"), pytest.raises(RunError, match="another process is distil"):
        _distill(_config(dataset, epochs=1), output)
    assert (output / "metrics.jsonl").read_bytes() == rows
    lines = rows.splitlines(keepends=True)
    (output / "metrics.jsonl").write_bytes(b"".join([*lines, lines[-1]]))  # as written by two processes at once
    with pytest.raises(RunError, match="repeats the row of update 1: delete it"):
        _distill(_config(dataset, epochs=1), output)
