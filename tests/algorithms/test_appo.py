import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groundling.algorithms import APPO, Rollout, v_trace
from groundling.envs.seeds import training_seed
from groundling.envs.vector import TextVectorEnv
from groundling.errors import ConfigError, RunError
from groundling.policies.policy import Action, Evaluation, Policy, Segment
from groundling.runtime.processes import Processes
from groundling.worlds.text.collect import EnvCollector
from tests.conftest import Corridor, TablePolicy


class RecallPolicy(Policy):
    """Reads the corridor's goal at the first step only, and its position never: it must remember."""

    def __init__(self, recurrence: int = 4) -> None:
        super().__init__()
        self.recurrence, self.memory_size = recurrence, 8
        self.cell, self.actor, self.critic = nn.GRUCell(2, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def act(
        self,
        observations: Sequence,
        *,
        memory: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Action:
        with torch.no_grad():
            memory = self.cell(self._read(observations), memory)
            log_probs, values = self._heads(memory)
        return Action.choose(
            log_probs, values, deterministic=deterministic, generator=generator, memory=memory
        )

    def evaluate(self, observations: Sequence[Segment], actions: Tensor) -> Evaluation:
        memory, memories = torch.stack([s.memory for s in observations]), []
        starts = torch.stack([s.starts for s in observations])
        for t in range(actions.shape[1]):
            memory = memory * ~starts[:, t, None]
            memory = self.cell(self._read([s.observations[t] for s in observations]), memory)
            memories.append(memory)
        log_probs, values = self._heads(torch.stack(memories, dim=1))
        return Evaluation.of(log_probs, actions, values)

    def values(self, observations: Sequence, memory: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._heads(self.cell(self._read(observations), memory))[1]

    def save_pretrained(self, folder: Path) -> None: ...

    def load_weights(self, folder: Path) -> None: ...

    def _heads(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(memory).log_softmax(-1), self.critic(memory)[..., 0]

    @staticmethod
    def _read(observations: Sequence) -> Tensor:
        first = [not o.past_actions for o in observations]
        goal = [1.0 if o.goal == "go left" else -1.0 for o in observations]
        return torch.tensor([[g * f, f] for g, f in zip(goal, first, strict=True)])


def _envs(num_envs: int = 6) -> TextVectorEnv:
    envs = TextVectorEnv(
        Corridor, num_envs, ["left", "right", "stay"], seed_of=lambda i, k: training_seed(0, i, k)
    )
    envs.reset()
    return envs


def _policy_and_rollout(num_steps: int = 8) -> tuple[RecallPolicy, Rollout]:
    torch.manual_seed(0)
    policy = RecallPolicy()
    collector = EnvCollector(_envs(), num_steps, policy.initial_memory(6))
    return policy, collector.collect(policy, generator=torch.Generator().manual_seed(0))[0]


def _learn(policy: Policy, rollout: Rollout, **options: object) -> tuple[Policy, dict[str, float]]:
    learner, appo = copy.deepcopy(policy), APPO(**{"learning_rate": 1e-2, **options})
    appo.setup(learner)
    return learner, appo.update(learner, rollout, generator=torch.Generator().manual_seed(1))


def test_learns_what_must_be_remembered() -> None:
    torch.manual_seed(0)
    policy, appo = RecallPolicy(), APPO(learning_rate=2e-2, minibatch_size=64, gamma=0.9)
    appo.setup(policy)
    collector = EnvCollector(_envs(16), 16, policy.initial_memory(16))
    generator, rates = torch.Generator().manual_seed(0), []
    for _ in range(40):
        rollout, episodes = collector.collect(policy, generator=generator)
        appo.update(policy, rollout, generator=generator)
        rates.append(sum(e.success for e in episodes) / len(episodes))
    assert np.mean(rates[:3]) < 0.7
    assert np.mean(rates[-3:]) > 0.95


def test_the_first_step_is_one_on_the_rollouts_own_targets() -> None:
    policy, rollout = _policy_and_rollout()
    _, figures = _learn(policy, rollout, entropy_coefficient=0.0)
    # As nothing has been learnt yet, ratios are 1, and present values are those of the rollout.
    targets, advantages = [], []
    for start in (0, 4):
        steps = slice(start, start + 4)
        last = rollout.last_values if start else rollout.values[4]
        pair = v_trace(
            torch.zeros(4, 6),
            rollout.rewards[steps],
            rollout.values[steps],
            rollout.dones[steps],
            last,
            0.99,
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


def test_late_data_is_weighed_by_the_ratio_and_clipped() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.log_probs = rollout.log_probs - np.log(2.0)  # every action is twice as likely now
    _, figures = _learn(policy, rollout)
    assert figures["lag_ratio"] == pytest.approx(2, rel=1e-4)
    assert figures["clip_fraction"] == 1
    rollout.log_probs = rollout.log_probs - np.log(1e3)
    _, figures = _learn(policy, rollout)
    assert figures["lag_ratio"] == pytest.approx(20, rel=1e-4)


def test_what_does_not_count_is_in_no_figure() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.log_probs = rollout.log_probs - np.log(2.0)
    rollout.log_probs[4:] -= np.log(4.0)
    rollout.mask = torch.ones_like(rollout.dones)
    rollout.mask[4:, :] = False
    assert _learn(policy, rollout)[1]["lag_ratio"] == pytest.approx(2, rel=1e-4)


def test_the_originals_last_step_teaches_nothing() -> None:
    policy, rollout = _policy_and_rollout()
    rollout.dones[:] = False
    learned = []
    for original in (False, True):
        appo = APPO(original_bootstrap=original)
        appo._normalise = lambda advantages, weights: learned.append(advantages) or advantages
        learner = copy.deepcopy(policy)
        appo.setup(learner)
        appo.update(learner, rollout, generator=torch.Generator().manual_seed(1))
    assert learned[0].shape == (12, 4)
    assert learned[0][:, -1].abs().min() > 1e-4
    assert learned[1][:, -1].abs().max() < 1e-6


def test_processes_normalise_over_what_all_of_them_have() -> None:
    advantages = torch.randn(10, 4) * 3 + 5
    appo = APPO()
    whole = appo._normalise(advantages, None)
    assert whole.mean().abs() < 1e-6 and whole.std(correction=0) == pytest.approx(1, abs=1e-5)
    halves = [advantages[0::2], advantages[1::2]]

    class Pair:
        """One of two processes, which knows what the other one will say."""

        def sum_figures(self, figures: dict[str, float]) -> dict[str, float]:
            exact = advantages.double()
            sums = {"count": 40.0, "sum": exact.sum().item(), "squares": exact.square().sum().item()}
            assert figures["count"] == 20
            return sums

    appo.processes = Pair()
    for i, half in enumerate(halves):
        torch.testing.assert_close(appo._normalise(half, None), whole[i::2])
    weights = torch.zeros(10, 4)
    weights[:5] = 1
    alone = APPO()._normalise(advantages, weights)[:5]
    assert alone.mean().abs() < 1e-6


def test_advantages_that_are_next_to_nothing_stay_small() -> None:
    noise = torch.tensor([[1e-6, -1e-6], [1e-6, -1e-6]])  # of deviation 1e-6: the original divides by 1e-3
    torch.testing.assert_close(APPO()._normalise(noise, None), noise / 1e-3)


def test_a_policy_without_memory_learns_from_single_steps() -> None:
    torch.manual_seed(0)
    policy = TablePolicy()
    rollout, _ = EnvCollector(_envs(), 8).collect(policy, generator=torch.Generator().manual_seed(0))
    learner, figures = _learn(policy, rollout, minibatch_size=16)
    assert figures["grad_norm"] > 0
    assert any(not p.equal(q) for p, q in zip(policy.parameters(), learner.parameters(), strict=True))


def test_defaults_are_the_originals() -> None:
    appo = APPO()
    assert (appo.learning_rate, appo.adam_epsilon, appo.gamma) == (1e-4, 1e-6, 0.99)
    assert (appo.minibatch_size, appo.epochs, appo.clip_range, appo.value_clip_range) == (4096, 1, 0.1, 1.0)
    assert (appo.entropy_coefficient, appo.max_grad_norm, appo.rho_bar, appo.c_bar) == (0.003, 4.0, 1.0, 1.0)


def test_a_minibatch_that_does_not_fit_is_not_divided() -> None:
    """Its advantages are normalised over it: halves would be learnt otherwise, and other processes would wait."""
    policy, rollout = _policy_and_rollout()
    appo = APPO(minibatch_size=16)
    appo.setup(policy)
    terms, calls = appo._terms, []

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: Tensor) -> Tensor:
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")

    def full(policy: Policy, batch: Any, share: Tensor) -> Any:
        calls.append(len(share))
        figures = terms(policy, batch, share)
        return {**figures, "loss": Full.apply(figures["loss"])}

    appo._terms = full
    with pytest.raises(RunError, match=r"CUDA out of memory: set algorithm\.args\.minibatch_size lower"):
        appo.update(policy, rollout, generator=torch.Generator())
    assert len(calls) == 1


@pytest.mark.parametrize("options", [{"micro_batch_size": 8}, {"rho_bar": 0.0}, {"clip_range": 0.0}])
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        APPO(**options)


def test_learn_is_given_whole_segments() -> None:
    policy, rollout = _policy_and_rollout()
    seen = []
    appo = APPO(minibatch_size=8)
    appo.setup(policy)
    appo._terms = lambda policy, batch, share: seen.append(len(share)) or {"loss": torch.zeros(())}
    appo.update(policy, rollout, generator=torch.Generator())
    assert seen == [2] * 6


def test_every_process_must_have_a_segment_of_every_minibatch() -> None:
    policy, rollout = _policy_and_rollout()
    appo = APPO(minibatch_size=8)  # two segments each
    appo.setup(policy)
    appo.processes = Processes(0, 3)
    with pytest.raises(ConfigError, match="2 segments for 3 processes"):
        appo.update(policy, rollout, generator=torch.Generator())
