"""DPO and KTO: their update, and their losses compared with TRL's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groundling.algorithms import Rollout, create, dpo_loss, kto_loss
from groundling.algorithms.algorithm import check_trains
from groundling.errors import ConfigError
from groundling.worlds.text.world import TextWorld
from tests.conftest import SequencePolicy

_TRL = [json.loads(line) for line in Path(__file__).with_name("trl_preferences.jsonl").read_text().splitlines()]
"""TRL 1.16's losses and gradients, recorded by scripts/trl_preferences.py."""


@pytest.mark.parametrize("row", _TRL, ids=lambda row: json.dumps(row["settings"]))
def test_losses_and_gradients_are_trls(row: dict[str, Any]) -> None:
    ratios = torch.tensor(row["log_ratios"], dtype=torch.float64, requires_grad=True)
    if "mismatched" in row:
        kl = max(0.0, sum(row["mismatched"]) / len(ratios))
        losses = kto_loss(ratios, torch.tensor(row["label"], dtype=torch.float64), kl, **row["settings"])
    else:
        lengths = torch.tensor(row["lengths"]).view(2, -1)
        losses = dpo_loss(*ratios.view(2, -1), lengths=(lengths[0], lengths[1]), **row["settings"])
    losses.mean().backward()
    assert losses.mean().item() == pytest.approx(row["loss"], abs=1e-9)
    assert ratios.grad is not None
    assert ratios.grad.tolist() == pytest.approx(row["gradient"], abs=1e-9)


_PROMPTS, _GOOD, _BAD = (0, 1, 2, 0, 1, 2), (1, 1, 0, 4), (2, 0, 4, 4)  # a text ends with token 0


def _rollout(policy: SequencePolicy, id: str) -> Rollout:
    """Return six examples, the last of which is past the end of the data; for KTO, every other example is bad."""
    first = [_GOOD if id == "dpo" or place % 2 == 0 else _BAD for place in range(6)]
    second = [_BAD if id == "dpo" else first[place - 1] for place in range(6)]
    prompts = [prompt for prompt in _PROMPTS for _ in range(2)]
    actions = torch.tensor([text for both in zip(first, second, strict=True) for text in both]).T  # (4, 12)
    dones = actions == 0
    mask = dones.flip(0).cumsum(0).flip(0) > 0
    mask[:, 10:] = False
    rewards = dones * torch.tensor([[1.0, 0.0] * 6 if id == "dpo" else [1.0, 0.0, 0.0, 0.0] * 3])
    if id == "kto":
        mask[:, 1::2] = False
    with torch.no_grad():
        reference = policy.evaluate(prompts, actions.T).log_probs.T.clone()
    zero = torch.zeros(4, 12)
    return Rollout(prompts, actions, reference, zero, rewards, dones, zero[0], [], sequences=True, mask=mask)


def _updated(id: str, updates: int = 1, **args: Any) -> tuple[SequencePolicy, dict[str, float]]:
    torch.manual_seed(0)
    policy = SequencePolicy()
    rollout, algorithm = _rollout(policy, id), create(id, learning_rate=0.05, **args)
    algorithm.setup(policy)
    for _ in range(updates):
        figures = algorithm.update(policy, rollout, generator=torch.Generator())
    return policy, figures


@pytest.mark.parametrize("id", ["dpo", "kto"])
def test_the_good_texts_become_more_probable_than_the_bad_ones(id: str) -> None:
    _, before = _updated(id)
    assert before["loss"] == pytest.approx(0.5 if id == "kto" else torch.tensor(2.0).log().item(), abs=1e-6)
    assert before["rewards/margins"] == pytest.approx(0, abs=1e-6)
    _, after = _updated(id, 40)
    assert after["accuracy"] == 1 and after["loss"] < before["loss"] - 0.1
    assert after["rewards/chosen"] > 0 > after["rewards/rejected"]
    assert after["rewards/margins"] == pytest.approx(after["rewards/chosen"] - after["rewards/rejected"], abs=1e-6)


@pytest.mark.parametrize("id", ["dpo", "kto"])
def test_micro_batches_do_not_change_the_update(id: str) -> None:
    whole, figures = _updated(id, 3, minibatch_size=5)
    for size in (1, 2, 3):
        parts, same = _updated(id, 3, minibatch_size=5, micro_batch_size=size)
        assert torch.allclose(parts.actor, whole.actor, atol=1e-5)
        assert same == pytest.approx(figures, abs=1e-5)


@pytest.mark.parametrize("id", ["dpo", "kto"])
def test_examples_past_the_end_are_not_learnt(id: str) -> None:
    torch.manual_seed(0)
    policy = SequencePolicy()
    rollout, algorithm = _rollout(policy, id), create(id, learning_rate=0.05)
    algorithm.setup(policy)
    rollout.actions[:3, 10:] = torch.tensor([[3], [3], [0]])
    algorithm.update(policy, rollout, generator=torch.Generator())
    expected, _ = _updated(id)
    assert torch.equal(policy.actor, expected.actor)


def test_ktos_kl_is_that_of_mismatched_texts_and_at_least_0() -> None:
    policy, _ = _updated("kto", 5)
    torch.manual_seed(0)
    rollout, algorithm = _rollout(SequencePolicy(), "kto"), create("kto")
    assert rollout.mask is not None
    rollout.mask[:, ::2] = (rollout.dones.flip(0).cumsum(0).flip(0) > 0)[:, ::2]
    figures = algorithm.measure(policy, rollout)
    with torch.no_grad():
        now = policy.evaluate(rollout.observations, rollout.actions.T).log_probs.T
    inside = rollout.dones.flip(0).cumsum(0).flip(0) > 0
    ratios = ((now - rollout.log_probs) * inside).sum(0)
    assert figures["kl"] == pytest.approx(max(0.0, ratios[1::2].mean().item()), abs=1e-6)
    assert figures["rewards/chosen"] == pytest.approx(0.1 * ratios[0::4].mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing=0.1 does nothing without loss_type=robust"),
        ({"loss_type": "sigmoid_norm"}, "loss_type must be one of sigmoid, robust, hinge, ipo"),
        ({"beta": 0.0}, "beta must be greater than 0"),
    ],
)
def test_wrong_options_are_refused(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        create("dpo", **args)


def test_worlds_without_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="it learns from preferences between texts"):
        check_trains("dpo", {}, "action_scoring", {}, TextWorld.offers)
