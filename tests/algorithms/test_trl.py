"""GRPO's options compared with TRL's GRPOTrainer (scripts/trl_grpo.py): advantages, losses and gradients."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groundling.algorithms import GRPO, Rollout
from groundling.algorithms.optimisation import accumulate
from groundling.algorithms.rollout import Batch
from groundling.policies.policy import Action, Evaluated, Policy
from tests.algorithms.rollouts import generator

_TRL = json.loads((Path(__file__).parents[1] / "data" / "trl_grpo.json").read_text())
_GIVEN = {name: torch.tensor(values) for name, values in _TRL["rollout"].items()}
_NAMES = {"beta": "kl_coefficient", "entropy_coef": "entropy_coefficient", "epsilon": "clip_range"}


class _Shifted(Policy):
    """Adds its parameter to each token's log-probability, and half of it to the entropy; texts are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(_GIVEN["now"].shape))

    def evaluate(self, observations: Sequence[int], actions: Tensor) -> Evaluated:
        rows, zeros = torch.tensor(observations), torch.zeros(actions.shape)
        log_probs = (_GIVEN["now"] + self.shift)[rows]
        entropies = (_GIVEN["entropies"] + 0.5 * self.shift)[rows]
        return Evaluated(log_probs, entropies, zeros, lambda: zeros[..., None], lambda: log_probs)

    def act(self, observations: Sequence[int], **options: Any) -> Action:
        raise NotImplementedError

    def values(self, observations: Sequence[int], memory: Tensor | None = None) -> Tensor:
        raise NotImplementedError


def _rollout() -> Rollout:
    count, length = _GIVEN["now"].shape
    steps = torch.arange(length)[:, None]
    dones, zeros = steps == _GIVEN["lengths"] - 1, torch.zeros(length, count)
    return Rollout(
        observations=list(range(count)),
        actions=zeros.long(),
        log_probs=_GIVEN["old"].T,
        values=zeros,
        rewards=_GIVEN["rewards"] * dones,
        dones=dones,
        last_values=zeros[0],
        last_observations=[],
        sequences=True,
        mask=steps < _GIVEN["lengths"],
        groups=torch.arange(count) // 4,
        kl=(_GIVEN["old"] - _GIVEN["reference"]).T,
        truncated=~_GIVEN["ends"],
    )


def _options(config: dict[str, Any]) -> dict[str, Any]:
    """Return our options for TRL's arguments; TRL's epsilon_high is CISPO's bound itself."""
    config = dict(config)
    if (high := config.pop("epsilon_high", None)) is not None:
        config["clip_range_high"] = high - 1 if config["loss_type"] == "cispo" else high
    return {_NAMES.get(name, name): value for name, value in config.items()}


@pytest.mark.parametrize("micro_batch_size", [None, 8])
@pytest.mark.parametrize("case", _TRL["cases"], ids=[case["name"] for case in _TRL["cases"]])
def test_advantages_losses_and_gradients_are_trls(
    case: dict[str, Any], micro_batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_order(batch: Batch, *arguments: Any) -> Iterator[Tensor]:
        yield from batch.index.split(6)

    monkeypatch.setattr(Batch, "minibatches", in_order)
    policy, rollout = _Shifted(), _rollout()
    grpo = GRPO(**_options(case["config"]), micro_batch_size=micro_batch_size)
    grpo.setup(policy)
    targets = grpo.targets(rollout)
    torch.testing.assert_close(targets.advantages[0], torch.tensor(case["advantages"]), atol=1e-6, rtol=0)
    for regularizer in grpo.regularizers:
        targets.more |= regularizer.targets(rollout)
    batch, losses, gradients = Batch.of(policy, rollout, targets), [], []
    for indices in grpo.minibatches(batch, generator()):
        figures = accumulate(grpo, batch, partial(grpo.regularized, policy), indices, [policy.shift])
        losses.append(figures["loss"])
        gradients.append(policy.shift.grad)
    assert losses == pytest.approx(case["losses"], abs=1e-6)
    torch.testing.assert_close(sum(gradients), torch.tensor(case["gradient"]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "dr_grpo", "cispo"])
def test_metrics_are_means_over_tokens_whatever_the_divisor(loss_type: str) -> None:
    policy, rollout = _Shifted(), _rollout()
    grpo = GRPO(loss_type=loss_type, minibatch_size=1000, kl_coefficient=0.1, micro_batch_size=8)
    grpo.setup(policy)
    figures = grpo.update(policy, rollout, generator=generator())
    counted = rollout.mask.T
    entropies = _GIVEN["entropies"][counted]
    if loss_type == "grpo":  # mean over each text first
        entropies = (_GIVEN["entropies"] * counted).sum(1) / counted.sum(1)
    assert figures["entropy"] == pytest.approx(entropies.mean().item(), rel=1e-5)


def test_truncated_texts_count_in_their_group_but_are_not_learnt() -> None:
    gradients = []
    for masked in (False, True):
        policy = _Shifted()
        grpo = GRPO(mask_truncated_completions=masked, learning_rate=0.1)
        grpo.setup(policy)
        grpo.update(policy, _rollout(), generator=generator())
        gradients.append(policy.shift.detach().any(1))
    learnt, without = gradients
    assert learnt[~_GIVEN["ends"]].any() and torch.equal(without, learnt & _GIVEN["ends"])
    masked, all_of_them = (GRPO(mask_truncated_completions=flag).targets(_rollout()) for flag in (True, False))
    assert torch.equal(masked.advantages, all_of_them.advantages)
