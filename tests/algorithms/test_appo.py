from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groundling.algorithms import APPO, Rollout, v_trace
from groundling.algorithms.rollout import Batch
from groundling.errors import ConfigError, RunError
from groundling.policies.policy import Evaluated, Policy
from groundling.policies.recurrent import RecurrentPolicy
from groundling.runtime.processes import Processes
from tests.algorithms.rollouts import corridor, generator, updated


class RecallPolicy(RecurrentPolicy):
    """Reads the corridor's goal only at the first step, and never its position, so it needs its memory."""

    def __init__(self, recurrence: int = 4) -> None:
        super().__init__()
        self.recurrence, self.memory_size = recurrence, 8
        self.cell, self.actor, self.critic = nn.GRUCell(2, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def features(self, observations: Sequence[Sequence[Any]]) -> Tensor:
        flat = [o for part in observations for o in part]
        return torch.tensor(
            [[(1.0 if o.goal == "go left" else -1.0), 1.0] if not o.past_actions else [0.0] * 2 for o in flat]
        )

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.cell(features, memory)
        return memory, memory

    def unroll(self, features: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        memories = []
        for t in range(features.shape[1]):
            memory = self.cell(features[:, t], memory * ~starts[:, t, None])
            memories.append(memory)
        return torch.stack(memories, dim=1)


def _policy_and_rollout(num_steps: int = 8) -> tuple[RecallPolicy, Rollout]:
    torch.manual_seed(0)
    policy = RecallPolicy()
    return policy, corridor(policy, 6, num_steps).collect(policy, generator=generator())[0]


def _learn(policy: Policy, rollout: Rollout, **options: object) -> tuple[Policy, dict[str, float]]:
    return updated(policy, rollout, "appo", **{"learning_rate": 1e-2, **options})


def test_learns_what_must_be_remembered() -> None:
    torch.manual_seed(0)
    policy, appo = RecallPolicy(), APPO(learning_rate=2e-2, minibatch_size=64, gamma=0.9)
    appo.setup(policy)
    collector, draws, rates = corridor(policy, 16, 16), generator(), []
    for _ in range(40):
        rollout, episodes = collector.collect(policy, generator=draws)
        appo.update(policy, rollout, generator=draws)
        rates.append(sum(e.success for e in episodes) / len(episodes))
    assert np.mean(rates[:3]) < 0.7
    assert np.mean(rates[-3:]) > 0.95


def test_the_first_step_uses_the_rollouts_targets() -> None:
    policy, rollout = _policy_and_rollout()
    _, figures = _learn(policy, rollout, entropy_coefficient=0.0)
    # Before the first step, ratios are 1, and values are those of the rollout.
    targets, advantages = [], []
    for start in (0, 4):
        steps = slice(start, start + 4)
        last = rollout.last_values if start else rollout.values[4]
        pair = v_trace(
            torch.zeros(4, 6), rollout.rewards[steps], rollout.values[steps], rollout.dones[steps], last, 0.99
        )
        targets.append(pair[0])
        advantages.append(pair[1])
    value_loss = 0.5 * (torch.cat(targets) - rollout.values).square().mean().item()
    assert figures["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert figures["lag_ratio"] == pytest.approx(1, abs=1e-5)
    assert figures["clip_fraction"] == 0
    assert figures["value_loss"] == pytest.approx(value_loss, rel=1e-4)
    assert figures["policy_loss"] == pytest.approx(0, abs=1e-6)  # minus the mean of normalised advantages
    assert torch.cat(advantages).std() > 0


def test_off_policy_data_is_weighted_by_the_clipped_ratio() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.log_probs = rollout.log_probs - np.log(2.0)  # every action is now twice as likely
    _, figures = _learn(policy, rollout)
    assert figures["lag_ratio"] == pytest.approx(2, rel=1e-4)
    assert figures["clip_fraction"] == 1
    rollout.log_probs = rollout.log_probs - np.log(1e3)
    _, figures = _learn(policy, rollout)
    assert figures["lag_ratio"] == pytest.approx(20, rel=1e-4)


def test_masked_steps_are_in_no_figure() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.log_probs = rollout.log_probs - np.log(2.0)
    rollout.log_probs[4:] -= np.log(4.0)
    rollout.mask = torch.ones_like(rollout.dones)
    rollout.mask[4:, :] = False
    assert _learn(policy, rollout)[1]["lag_ratio"] == pytest.approx(2, rel=1e-4)


def test_processes_normalise_over_all_of_their_steps() -> None:
    advantages = torch.randn(10, 4) * 3 + 5
    appo = APPO()
    whole = appo._normalize(advantages, None)
    assert whole.mean().abs() < 1e-6 and whole.std(correction=0) == pytest.approx(1, abs=1e-5)
    halves = [advantages[0::2], advantages[1::2]]

    class Pair:
        """One of two processes, with the sums of both."""

        def sum_figures(self, figures: dict[str, float]) -> dict[str, float]:
            exact = advantages.double()
            sums = {"count": 40.0, "sum": exact.sum().item(), "squares": exact.square().sum().item()}
            assert figures["count"] == 20
            return sums

    appo.processes = Pair()
    for i, half in enumerate(halves):
        torch.testing.assert_close(appo._normalize(half, None), whole[i::2])
    weights = torch.zeros(10, 4)
    weights[:5] = 1
    alone = APPO()._normalize(advantages, weights)[:5]
    assert alone.mean().abs() < 1e-6


def test_a_minibatch_that_does_not_fit_is_not_divided() -> None:
    """Advantages are normalised over a minibatch, so halves would change the result and block other processes."""
    policy, rollout = _policy_and_rollout()
    appo = APPO(minibatch_size=16)
    appo.setup(policy)
    loss, calls = appo.loss, []

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: Tensor) -> Tensor:
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")

    def full(evaluation: Evaluated, batch: Batch) -> Any:
        calls.append(len(batch))
        terms = loss(evaluation, batch)
        return {**terms, "loss": Full.apply(terms["loss"])}

    appo.loss = full
    with pytest.raises(RunError, match=r"CUDA out of memory: lower algorithm\.args\.minibatch_size"):
        appo.update(policy, rollout, generator=generator())
    assert len(calls) == 1


def test_minibatches_hold_whole_segments() -> None:
    policy, rollout = _policy_and_rollout()
    appo = APPO(minibatch_size=8)
    appo.setup(policy)
    batch = Batch.of(policy, rollout, appo.targets(rollout))
    assert [len(indices) for indices in appo.minibatches(batch, generator())] == [2] * 6


def test_every_process_needs_a_segment_of_every_minibatch() -> None:
    policy, rollout = _policy_and_rollout()
    appo = APPO(minibatch_size=8)  # two segments each
    appo.setup(policy)
    appo.processes = Processes(0, 3)
    with pytest.raises(ConfigError, match="2 segments for 3 processes"):
        appo.update(policy, rollout, generator=generator())
