"""Runs with several parts of a reward, in every world."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from groundling import rewards
from groundling.config.compose import compose
from groundling.judges.reward_models import reward_models
from groundling.training.tracking import read_metrics
from groundling.training.train import train
from tests.thorough import some_of

_WORLDS = {
    "text": [*("demo-easy", "world.num_envs=2", "world.num_steps=4", "training.steps=24"), "world.args.max_steps=4"],
    "nethack": [
        *("motif/score", "world.num_envs=2", "world.num_steps=4", "training.steps=24", "world.num_workers=0"),
        *("world.ahead=false", "policy.args={hidden_size: 8, recurrence: 4}", "world.args.max_episode_steps=5"),
    ],
    "writing": [
        *(
            *("rl4lms/increasing_numbers_ppo", "world.num_texts=2", "world.num_tokens=4"),
            *("training.steps=24", "evaluation.every=1"),
        ),
        "evaluation.episodes=2",
    ],
}


@rewards.register("test-spoken")
def letters(generations: list[str], letter: str = "a") -> list[float]:
    """How often a letter comes up."""
    return [float(text.count(letter)) for text in generations]


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distilled")
    torch.manual_seed(0)
    reward_models.create("characters", channels=8, hidden_size=8).save(folder)
    return folder


@pytest.mark.parametrize("world", some_of(_WORLDS, ["nethack", "writing"]))
def test_a_sum_of_rewards_is_learnt_in_every_world(world: str, distilled: Path, tmp_path: Path) -> None:
    if world == "nethack":
        pytest.importorskip("nle")
    experiment, *words = _WORLDS[world]
    count = [] if world == "writing" else ["reward.count={coefficient: 0.5, args: {exponent: 1}}"]
    words += [
        *("device=cpu", "algorithm.args={minibatch_size: 4, learning_rate_schedule: constant}", *count),
        "reward.reward_model={args: {normalize: false, threshold_quantile: 0}, coefficient: 100}",
        *(f"reward.reward_model.args.path={distilled}", "reward.spoken={id: test-spoken, coefficient: -1}"),
        *("training.checkpoint_every=1", f"run_dir={tmp_path}"),
    ]
    assert train(compose(experiment, words), Console(quiet=True), pytest.fail)
    rows = read_metrics(tmp_path)
    named = {"reward/reward_model", "reward/spoken", *(["reward/count"] if count else [])}
    assert len(rows) >= 3 and named <= rows[-1].keys()
    assert any(row["reward/reward_model"] for row in rows) and any(row["reward/spoken"] for row in rows)
