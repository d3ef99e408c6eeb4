"""What all algorithms share, on sequences with masks, groups and a reference."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from groundling.algorithms import Rollout, create
from groundling.algorithms.batch import Batch
from groundling.algorithms.optimisation import accumulate, make_adamw, share_of_rate
from groundling.errors import ConfigError, RunError
from groundling.policies.policy import Policy
from groundling.runtime.processes import Processes
from tests.conftest import MaskedSequencePolicy, SequencePolicy
from tests.thorough import thorough

_PROMPTS = [0, 1, 2] * 8
_ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 0.05, "normalize_advantages": True, "kl_coefficient": 0.01},
    "nlpo": {"learning_rate": 0.05, "normalize_advantages": True, "target_update_iterations": 4},
    "a2c": {"learning_rate": 0.05},
    "trpo": {"learning_rate": 0.05, "target_kl": 0.05, "kl_coefficient": 0.01},
    "rloo": {"learning_rate": 0.2, "epochs": 2, "kl_coefficient": 0.01},
    "grpo": {"learning_rate": 0.2, "epochs": 2, "kl_coefficient": 0.01},
    "reinforce_pp": {"learning_rate": 0.2, "epochs": 2, "kl_coefficient": 0.01},
}


def _policy(algorithm: str) -> SequencePolicy:
    torch.manual_seed(0)
    return MaskedSequencePolicy() if algorithm == "nlpo" else SequencePolicy()


def _update(
    algorithm: str, policy: Policy, rollout: Rollout, **options: Any
) -> tuple[Policy, dict[str, float]]:
    learner = copy.deepcopy(policy)
    made = create(algorithm, **{**_ALGORITHMS[algorithm], **options})
    made.setup(learner)
    return learner, made.update(learner, rollout, generator=torch.Generator().manual_seed(1))


def _difference(a: Policy, b: Policy) -> float:
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_learns_to_write(algorithm: str) -> None:
    policy, made = _policy(algorithm), create(algorithm, **_ALGORITHMS[algorithm])
    made.setup(policy)
    generator = torch.Generator().manual_seed(0)
    rewards = []
    for _ in range(25):
        rollout = policy.write(_PROMPTS, generator)
        rewards.append(rollout.rewards.sum(0).mean().item())
        figures = made.update(policy, rollout, generator=generator)
        assert all(math.isfinite(value) for value in figures.values())
    assert rewards[0] < 0.35
    assert sum(rewards[-3:]) / 3 > 0.6
    assert figures["kl_mean"] > 0.1  # it is no longer where it began


@pytest.mark.parametrize("micro", [13, *thorough(1, 40)])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_accumulated_micro_batches_of_unequal_masks_give_the_same_step(algorithm: str, micro: int) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    assert rollout.mask is not None and not rollout.mask.all()
    whole, figures = _update(algorithm, policy, rollout)
    pieces, same_figures = _update(algorithm, policy, rollout, micro_batch_size=micro)
    assert _difference(whole, policy) > 1e-3
    assert _difference(whole, pieces) < 1e-5
    assert figures == pytest.approx(same_figures, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_what_the_mask_leaves_out_counts_for_nothing(algorithm: str) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    spoilt = copy.deepcopy(rollout)
    assert spoilt.mask is not None and spoilt.kl is not None
    for tensor in (spoilt.log_probs, spoilt.values, spoilt.rewards, spoilt.kl):
        tensor[~spoilt.mask] = -200.0
    learnt, figures = _update(algorithm, policy, rollout, normalize_rewards=True)
    same, same_figures = _update(algorithm, policy, spoilt, normalize_rewards=True)
    assert _difference(learnt, same) < 1e-6
    assert figures == pytest.approx(same_figures, abs=1e-6)


class _Part(Processes):
    """One of several processes, which keeps its sums to itself."""

    def sum_gradients(self, parameters: Any) -> None: ...


@pytest.mark.parametrize("processes", [2, 30])
def test_the_processes_gradients_add_up_to_that_of_one(processes: int) -> None:
    policy = _policy("ppo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    batch = Batch.of(policy, rollout, rollout.rewards, rollout.rewards)
    parameters = list(policy.parameters())

    def gradient(processes: Processes) -> tuple[list[Tensor], dict[str, float]]:
        ppo = create("ppo", micro_batch_size=20)
        ppo.setup(policy)
        ppo.processes = processes
        figures = accumulate(
            ppo, batch, lambda micro: ppo._terms(policy, batch, micro), torch.arange(24), parameters
        )
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters], figures

    whole, figures = gradient(Processes())
    parts = [gradient(_Part(rank, processes)) for rank in range(processes)]
    for i, expected in enumerate(whole):
        assert torch.allclose(
            expected, torch.stack([gradients[i] for gradients, _ in parts]).sum(0), atol=1e-6
        )
    for name, value in figures.items():
        assert value == pytest.approx(sum(part_figures.get(name, 0.0) for _, part_figures in parts), abs=1e-6)


def test_a_minibatch_holds_so_many_steps_that_count() -> None:
    policy = _policy("ppo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    assert rollout.mask is not None
    batch = Batch.of(policy, rollout, rollout.rewards, rollout.rewards)
    mean = rollout.mask.sum().item() / len(_PROMPTS)
    assert 1 < mean < 5
    assert batch.elements(1) == 1 and batch.elements(rollout.mask.sum().item()) == len(_PROMPTS)
    assert batch.elements(math.ceil(4 * mean)) == 4
    minibatches = list(batch.minibatches(math.ceil(5 * mean), 2, torch.Generator().manual_seed(0)))
    assert [len(m) for m in minibatches] == [5, 5, 5, 5, 4] * 2
    assert sorted(torch.cat(minibatches[:5]).tolist()) == list(range(24))


def test_only_the_share_of_elements_with_the_largest_advantages_is_learnt_from() -> None:
    policy = _policy("ppo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    assert rollout.mask is not None
    advantages = torch.randn(rollout.rewards.shape, generator=torch.Generator().manual_seed(1))
    mean = (advantages.abs() * rollout.mask).sum(0) / rollout.mask.sum(0)  # (num_texts,)
    expected = sorted(mean.topk(6).indices.tolist())
    garbage = torch.where(rollout.mask, advantages, 1e9)  # what is masked does not count
    batch = Batch.of(policy, rollout, garbage, rollout.rewards)
    for epochs in (1, 2):
        made = create("ppo", advantage_share=0.25, epochs=epochs)
        minibatches = list(made.minibatches(batch, torch.Generator().manual_seed(0)))
        assert sorted(torch.cat(minibatches).tolist()) == sorted(expected * epochs)


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "grpo"])
def test_a_share_of_one_changes_nothing_and_a_smaller_one_learns(algorithm: str) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    whole, _ = _update(algorithm, policy, rollout)
    same, _ = _update(algorithm, policy, rollout, advantage_share=1.0)
    half, _ = _update(algorithm, policy, rollout, advantage_share=0.5)
    assert _difference(whole, same) == 0 < _difference(whole, half)
    assert _difference(policy, half) > 0


def test_the_largest_advantages_are_those_of_the_chosen_groups() -> None:
    policy = _policy("grpo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    advantages = torch.ones_like(rollout.rewards)
    chosen = torch.tensor(_PROMPTS) == 1
    advantages[:, chosen] = 0.1  # smaller than all others
    batch = Batch.of(policy, rollout, advantages, rollout.rewards)
    made = create("grpo", advantage_share=0.25, epochs=1)
    learnt = torch.cat(list(made.minibatches(batch, torch.Generator().manual_seed(0), chosen)))
    assert len(learnt) == 2 and chosen[learnt].all()


def test_groups_without_differences_are_left_out() -> None:
    policy = _policy("grpo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    seen: list[int] = []
    learner = copy.deepcopy(policy)
    evaluate = learner.evaluate
    learner.evaluate = lambda observations, actions: (  # type: ignore[method-assign]
        seen.extend(observations) or evaluate(observations, actions)
    )
    made = create("grpo", group_share=1 / 3, learning_rate=0.2)
    made.setup(learner)
    made.update(learner, rollout, generator=torch.Generator().manual_seed(1))
    deviations = {
        p: rollout.rewards.sum(0)[torch.tensor(_PROMPTS) == p].std(correction=0).item() for p in range(3)
    }
    assert {*seen} == {max(deviations, key=deviations.__getitem__)}


@pytest.mark.parametrize("fits", [5, 1])
def test_too_little_memory_halves_the_micro_batch_and_changes_nothing_else(fits: int) -> None:
    policy = _policy("ppo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    expected, _ = _update("ppo", policy, rollout)
    evaluate, sizes = SequencePolicy.evaluate, []

    class Small(SequencePolicy):
        def evaluate(self, observations: Any, actions: Tensor) -> Any:
            sizes.append(len(observations))
            result = evaluate(self, observations, actions)
            if len(observations) > fits:
                (result.log_probs.sum() * 3).backward()  # half-done
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB. And so on.")
            return result

    small = copy.deepcopy(policy)
    small.__class__ = Small
    ppo = create("ppo", **_ALGORITHMS["ppo"])
    ppo.setup(small)
    with pytest.warns(UserWarning, match="micro_batch_size="):
        ppo.update(small, rollout, generator=torch.Generator().manual_seed(1))
    assert _difference(expected, small) < 1e-5
    assert sum(size > fits for size in sizes) <= 5  # learnt once, not again at each minibatch
    assert max(sizes[6:]) <= fits


def test_memory_that_does_not_suffice_for_one_is_told() -> None:
    policy = _policy("ppo")
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))

    def fail(observations: Any, actions: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")

    policy.evaluate = fail  # type: ignore[method-assign]
    ppo = create("ppo")
    ppo.setup(policy)
    with (
        pytest.warns(UserWarning),
        pytest.raises(RunError, match=r"CUDA out of memory: .*gradient_checkpointing"),
    ):
        ppo.update(policy, rollout, generator=torch.Generator())


def test_weights_decay_but_biases_and_gains_do_not() -> None:
    class Net(SequencePolicy):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)

    policy = Net()
    optimizer = make_adamw(policy, 0.1, weight_decay=0.5)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    for p in policy.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    decayed = {name for name, p in policy.named_parameters() if not p.equal(before[name])}
    assert decayed == {"actor", "linear.weight"}  # critic is 0 anyway
    assert torch.allclose(policy.linear.weight, before["linear.weight"] * 0.95)


def test_schedules() -> None:
    for schedule, half in (("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)):
        assert share_of_rate(schedule, 0.0, 1.0) == 1.0
        assert share_of_rate(schedule, 0.0, 0.5) == pytest.approx(half)
        assert share_of_rate(schedule, 0.2, 1.0) == pytest.approx(0.1)
        assert share_of_rate(schedule, 0.2, 0.9) == pytest.approx(0.55)
        assert share_of_rate(schedule, 0.2, 0.4) == pytest.approx(half)
    assert share_of_rate("linear", 0.0, 0.0) == 0.0
    assert share_of_rate("cosine", 0.0, 0.25) == pytest.approx((1 - math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("a2c", {"rms_alpha": 1.0}),
        ("trpo", {"damping": -1}),
        ("trpo", {"line_search_factor": 1.0}),
        ("trpo", {"target_kl": 0}),
        ("nlpo", {"target_update_iterations": 0}),
        ("rloo", {"kl_coefficient": -0.1}),
        ("grpo", {"kl_target": 0.5}),  # steers a coefficient of 0
        ("reinforce_pp", {"warmup": 1.0}),
        ("a2c", {"micro_batch_size": 0}),
    ],
)
def test_impossible_options_are_named(algorithm: str, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        create(algorithm, **options)


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_state_goes_on_where_it_was(algorithm: str) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(_PROMPTS, torch.Generator().manual_seed(0))
    options = {**_ALGORITHMS[algorithm], "kl_coefficient": 0.1, "kl_target": 1.0}
    first = create(algorithm, **options)
    first.setup(policy)
    first.update(policy, rollout, generator=torch.Generator())
    again = create(algorithm, **options)
    again.load_state_dict(first.state_dict())
    assert again.state_dict() == first.state_dict() and first.kl.coefficient == pytest.approx(0.098)
