"""Bugs in GLAM and Lamorel that must not occur again, by number.

The tests of the others:

1. A score that changes with its batch mates: tests/lm/test_scoring.py::test_does_not_depend_on_the_company.
2. Token 0 counted as padding: tests/lm/test_scoring.py::test_token_zero_and_the_pad_token_count.
3. Raw logits summed, padding counted: ::test_equals_the_plain_computation; only compat does so.
4. Every value learns every return: tests/algorithms/test_losses.py::test_a_column_of_values_is_refused_….
5. Shipped configs that do not run: tests/convert/test_glam.py::test_every_kind_of_file_trains.
8. Envs stepped one after the other in a slow process: benchmarks/environment.py measures a step.
10. Tests in French that crash: tests/envs/test_languages.py, and tests/evaluation/test_agents.py runs every suite.
"""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling.config.compose import compose
from groundling.envs.text_env import TextObservation
from groundling.lm import LanguageModel
from groundling.policies import ActionScoringPolicy
from groundling.training import checkpoint
from groundling.training.tracking import TrainingProgress
from groundling.training.trainer import Trainer

_ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")


def _run(folder: Path, *overrides: str) -> Trainer:
    return Trainer(compose("demo-easy", ["algorithm.args.micro_batch_size=2", *overrides]), folder, warn=print)


def test_6_a_prompt_is_read_once_for_its_value_and_all_its_actions() -> None:
    policy = ActionScoringPolicy(LanguageModel.from_pretrained("starter"), value_hidden_sizes=(8,))
    observations = [
        TextObservation(f"go to the {colour} ball", ((f"You see a {colour} ball 1 step left",),), (), _ACTIONS, {})
        for colour in ("red", "green", "blue")
    ]
    read: list[int] = []
    embedding = policy.lm.model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, tokens, output: read.append(tokens[0].numel()))
    policy.act(observations)
    prompts = sum(work.tokens for work in policy.work(observations))
    candidates = sum(policy.lm.token_lengths(list(_ACTIONS))) + len(_ACTIONS)  # plus one start token each
    assert sum(read) <= prompts + len(observations) * candidates


def test_7_one_env_and_a_minibatch_that_does_not_divide_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["algorithm.args.minibatch_size=4", "algorithm.args.epochs=1"]
    run = _run(tmp_path, "world.num_envs=1", "training.steps=10", "world.num_steps=5", *small)
    seen: list[int] = []
    evaluate = run.policy.evaluate
    counting = lambda observations, actions: seen.append(len(actions)) or evaluate(observations, actions)  # noqa: E731
    monkeypatch.setattr(run.policy, "evaluate", counting)
    before = {name: p.detach().clone() for name, p in run.policy.named_parameters()}
    run.update(TrainingProgress(Console(quiet=True), 10, 0))
    assert seen == [2, 2, 1]  # four steps in micro-batches of two, then the fifth
    assert any(not torch.equal(p, before[name]) for name, p in run.policy.named_parameters())


def test_9_checkpoints_are_written_as_often_as_asked_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = ["training.checkpoint_every=3", "training.keep_checkpoints=2", "algorithm.args.epochs=1"]
    run = _run(tmp_path, "world.num_envs=2", "training.steps=28", "world.num_steps=2", *saving)
    saved: list[int] = []
    save = checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda folder, update, *more: (saved.append(update), save(folder, update, *more))
    )
    assert run.loop(Console(quiet=True), lambda: False)
    assert saved == [3, 6, 7]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000006", "000007"]
