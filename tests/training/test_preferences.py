"""Runs that learn from preferences between texts: DPO and KTO."""

import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling.config.compose import compose
from groundling.config.schema import Config
from groundling.errors import ConfigError, RunError
from groundling.io.row_files import read_rows
from groundling.policies import TokenPolicy
from groundling.policies.text_states import Sequences, read_states
from groundling.reports.page import write_report
from groundling.reports.run_folder import learning_figures, read_run
from groundling.runs import Run
from groundling.training.build import world_of
from groundling.training.checkpoint import open_run
from groundling.training.tracking import read_metrics
from groundling.training.train import train
from groundling.training.trainer import Trainer
from tests.building import algorithm_of, policy_of
from tests.launching import groundling
from tests.runs import assert_equal_runs, error_of
from tests.thorough import one_in

_GOOD, _BAD = "turn left", "go"
_TRAINED = 4  # four of five prompts


def _pairs(path: Path, count: int = 5) -> Path:
    rows = [{"prompt": f"go {i}", "chosen": f"{_GOOD} {i}", "rejected": f"{_BAD} {i}"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def config(model_folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Config]:
    """Return `config(algorithm, *overrides)`, the config of a run that learns from five pairs with a tiny GPT-2."""
    pairs = _pairs(tmp_path / "pairs.jsonl")

    def make(algorithm: str, *overrides: str) -> Config:
        small = [
            *(f"run_dir={tmp_path / 'run'}", "device=cpu", f"model.path={model_folder('gpt2')}"),
            *(f"world.args={{path:{pairs},fractions:[0.8,0.2,0]}}", "world.num_texts=6", "world.num_tokens=12"),
            *("algorithm.args={learning_rate:1e-3,minibatch_size:2}", "training.epochs=2", "evaluation.every=null"),
        ]
        return compose(algorithm, [*small, *overrides])

    return make


def _rollouts(config: Config, count: int):
    policy = policy_of(config, learns=True)
    collector = world_of(config).collector(policy, algorithm_of(config, policy), slice(0, config.world.num_texts))
    length = collector.in_passes(1)
    return policy, [collector.collect(policy, generator=torch.Generator())[0] for _ in range(count)], length


def _text(policy: TokenPolicy, rollout, column: int) -> str:
    length = rollout.observations[column].length
    text = policy.lm.tokenizer.decode(rollout.actions[:length, column])
    assert text.endswith(policy.lm.tokenizer.eos_token) and bool(rollout.dones[length - 1, column])
    return text.removesuffix(policy.lm.tokenizer.eos_token)


def test_pairs_are_adjacent_and_a_pass_ends_with_a_short_rollout(config: Callable[..., Config]) -> None:
    policy, rollouts, (steps, updates) = _rollouts(config("dpo"), 2)
    assert updates == 2 and steps == sum(rollout.num_transitions for rollout in rollouts)
    seen = set()
    for rollout, learned in zip(rollouts, (6, 2), strict=True):
        assert rollout.mask.any(0).tolist() == [column < learned for column in range(6)]
        assert rollout.rewards.sum(0)[:learned].tolist() == [1.0, 0.0] * (learned // 2)
        for column in range(0, learned, 2):
            prompts = {rollout.observations[place].prompt for place in (column, column + 1)}
            number = policy.lm.tokenizer.decode(*prompts)[-1]
            assert _text(policy, rollout, column) == f"{_GOOD} {number}"
            assert _text(policy, rollout, column + 1) == f"{_BAD} {number}"
            seen.add(number)
    assert len(seen) == _TRAINED


def test_kto_evaluates_each_prompt_with_another_examples_text(config: Callable[..., Config]) -> None:
    policy, (rollout,), (steps, updates) = _rollouts(config("kto", "world.num_texts=16"), 1)
    assert updates == 1 and steps == rollout.num_transitions
    assert rollout.mask.any(0).tolist() == [True, False] * 8
    texts = [_text(policy, rollout, column) for column in range(16)]
    assert texts[1::2] == [texts[-2], *texts[:-2:2]]
    assert rollout.rewards.sum(0)[::2].tolist() == [float(text.startswith(_GOOD)) for text in texts[::2]]
    assert len(set(texts)) == 8


@pytest.mark.parametrize("family", one_in(2, ["gpt2", "t5"]))
@pytest.mark.parametrize("lora", ["{}", "{r:2}"])
def test_the_reference_is_the_model_at_the_start(
    family: str, lora: str, config: Callable[..., Config], model_folder: Callable[[str], Path]
) -> None:
    made = config("dpo", f"model.path={model_folder(family)}", f"model.lora={lora}")
    policy, (rollout,), _ = _rollouts(made, 1)
    assert policy.reference is not None and (policy.reference.language_model is None) == (lora != "{}")
    prompt, tokens = rollout.observations[0].prompt, rollout.actions[: rollout.observations[0].length, 0].tolist()
    start = [policy._decoder.start_token] if policy.lm.is_encoder_decoder else []
    with torch.no_grad():
        states = read_states(policy.lm, Sequences([prompt], [[*start, *tokens[:-1]]], [len(tokens)]))
        alone = policy.lm.backbone.logits(states).log_softmax(-1)[range(len(tokens)), tokens]
    assert rollout.log_probs[: len(tokens), 0].tolist() == pytest.approx(alone.tolist(), abs=1e-4)
    assert not rollout.log_probs[len(tokens) :, 0].any()
    algorithm = algorithm_of(made, policy)
    before = algorithm.update(policy, rollout, generator=torch.Generator())
    after = algorithm.measure(policy, rollout)
    assert after["loss"] < before["loss"] and after["accuracy"] == 1
    assert torch.equal(policy.reference_log_probs(rollout.observations, rollout.actions.T).T, rollout.log_probs)


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_a_stopped_run_resumes_exactly_and_measures_held_out_pairs(
    algorithm: str, config: Callable[..., Config], tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("whole", "stopped")]
    whole, stopped = (config(algorithm, f"run_dir={folder}", "evaluation.every=1") for folder in folders)
    train(whole, Console(quiet=True))
    with open_run(folders[1], stopped.model_dump()):
        assert not Trainer(stopped, folders[1], print).loop(Console(quiet=True), lambda: True)
    train(stopped, Console(quiet=True))
    assert_equal_runs(*folders)
    rows = [row["metrics"] for row in read_rows(folders[0] / "validation.jsonl")]
    assert rows == [row["metrics"] for row in read_rows(folders[1] / "validation.jsonl")]
    assert rows[0]["loss"] == pytest.approx(math.log(2) if algorithm == "dpo" else 0.5, abs=1e-3)
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["rewards/margins"] > 0
    logged = {name for row in read_metrics(folders[0]) for name in row}
    assert {"rewards/chosen", "rewards/rejected", "rewards/margins", "accuracy"} <= logged


@pytest.mark.parametrize("lora", ["{}", "{r:2}"])
@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_evaluation_measures_the_held_out_preferences(
    algorithm: str, lora: str, config: Callable[..., Config], tmp_path: Path
) -> None:
    pairs = f"world.args={{path:{tmp_path / 'pairs.jsonl'},fractions:[0.4,0.2,0.4]}}"
    made = config(algorithm, pairs, f"model.lora={lora}", "evaluation.baselines=[zero-shot]", "training.epochs=4")
    train(made, Console(quiet=True))
    figures = Run(made.run_dir).evaluate().figures
    trained, start = figures["trained"], figures["zero-shot"]
    assert trained["rewards/margins"].value > start["rewards/margins"].value == pytest.approx(0, abs=1e-4)
    assert trained["loss"].value < start["loss"].value
    if algorithm == "dpo":
        assert trained["accuracy"].value > 0.5


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_a_report_shows_what_was_learned_and_a_missing_initial_model_is_named(
    algorithm: str, config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, start = f"world.args={{path:{tmp_path / 'pairs.jsonl'},fractions:[0.4,0.2,0.4]}}", tmp_path / "start"
    shutil.copytree(config(algorithm).model.path, start)
    made = config(algorithm, pairs, f"model.path={start}")
    shown = io.StringIO()
    train(made, Console(file=shown, width=120))
    assert " · accuracy " in shown.getvalue() and "no episode" not in shown.getvalue()
    page = write_report([Path(made.run_dir)], tmp_path / "report.html").read_text()
    assert "Mean return" not in page and "agrees with the preference or label" in page
    run = read_run(Path(made.run_dir))
    assert {"accuracy", "rewards/margins"} <= {*learning_figures([run])} and run.figure[0] == "accuracy"
    shutil.rmtree(start)
    with pytest.raises(
        RunError, match=f"{algorithm} needs the initial model for its metrics, but it is missing .no mod"
    ):
        Run(made.run_dir).evaluate()
    settings = Path(made.run_dir) / "config.yaml"  # of a run whose model was given by a name in another folder
    settings.write_text(settings.read_text().replace(f"path: {start}", "path: no-such-folder"))
    with pytest.raises(RunError, match=f"{algorithm} needs the initial model .* missing .no model 'no-such-folder'"):
        Run(made.run_dir).evaluate()
    figures = Run(made.run_dir).evaluate(overrides=["evaluation.metrics=[{id: rouge}]"]).figures
    assert "needs the initial model for its metrics, but it is missing" in capsys.readouterr().err
    assert figures["trained"]


def test_texts_with_labels_are_for_kto(config: Callable[..., Config], tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(f'{{"prompt": "{i}", "completion": "a", "label": true}}\n' for i in range(8)))
    with pytest.raises(ConfigError, match="for a text with a label, use `groundling train kto`"):
        train(config("dpo", f"world.args={{path: {path}}}"), Console(quiet=True))


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_two_processes_learn_like_one(algorithm: str, config: Callable[..., Config], tmp_path: Path) -> None:
    made = config(algorithm)
    words = [f"world.args={{path:{made.world.args['path']},fractions:[0.8,0.2,0]}}", f"model.path={made.model.path}"]
    words += ["device=cpu", "world.num_texts=6", "world.num_tokens=12", "training.epochs=2", "evaluation.every=null"]
    words += ["algorithm.args={learning_rate:1e-3,minibatch_size:3,micro_batch_size:1}"]
    for processes in (1, 2):
        ended = groundling(processes, "train", algorithm, f"run_dir={tmp_path / str(processes)}", *words)
        assert [process.exit_code for process in ended] == [0] * processes, ended
    names = ("step", "loss", "accuracy", "rewards/margins", "kl")
    for one, two in zip(*(read_metrics(tmp_path / str(count)) for count in (1, 2)), strict=True):
        assert {n: one.get(n) for n in names} == pytest.approx({n: two.get(n) for n in names}, abs=1e-4)


def test_what_cannot_be_learnt_from_is_refused(
    config: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"world\.num_texts=5 must be even"):
        _rollouts(config("dpo", "world.num_texts=5"), 1)
    unpaired = tmp_path / "labelled.jsonl"
    unpaired.write_text("".join(f'{{"prompt": "go {i}", "completion": "go", "label": true}}\n' for i in range(5)))
    with pytest.raises(ConfigError, match=r"has no chosen and rejected text .*to learn from"):
        _rollouts(config("dpo", f"world.args.path={unpaired}"), 1)
    with pytest.warns(UserWarning, match=r"texts are cut after 2 tokens; .* raise world\.num_tokens"):
        _rollouts(config("dpo", "world.num_tokens=2"), 1)
    with pytest.warns(UserWarning, match="all texts have the same label, but KTO needs both"):
        _rollouts(config("kto", f"world.args.path={unpaired}"), 1)
    words = ["train", "dpo", f"run_dir={tmp_path / 'none'}", "world.args.path=none.jsonl", "device=cpu"]
    assert "there is no file none.jsonl" in error_of(words, capsys)
    words = ["train", "demo", "algorithm.id=dpo", "~algorithm.args", f"run_dir={tmp_path / 'other'}"]
    assert "it learns from preferences between texts" in error_of(words, capsys)
