"""The update shared by on-policy algorithms, on texts with masks, groups and a reference."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from groundling.algorithms import algorithms, create
from groundling.algorithms.optimisation import accumulate, make_adamw, schedule_learning_rate
from groundling.errors import ConfigError, RunError
from groundling.runtime.processes import Processes
from tests.algorithms.rollouts import PROMPTS, batch_of, difference, generator, texts, updated
from tests.conftest import MaskedSequencePolicy, SequencePolicy
from tests.thorough import thorough

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


def _update(algorithm: str, policy: Any, rollout: Any, **options: Any) -> tuple[Any, dict[str, float]]:
    return updated(policy, rollout, algorithm, **{**_ALGORITHMS[algorithm], **options})


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_learns_to_write(algorithm: str) -> None:
    policy, made = _policy(algorithm), create(algorithm, **_ALGORITHMS[algorithm])
    made.setup(policy)
    draws, rewards = generator(), []
    for _ in range(25):
        rollout = policy.write(PROMPTS, draws)
        rewards.append(rollout.rewards.sum(0).mean().item())
        figures = made.update(policy, rollout, generator=draws)
        assert all(math.isfinite(value) for value in figures.values())
    assert rewards[0] < 0.35
    assert sum(rewards[-3:]) / 3 > 0.6
    assert figures["kl_mean"] > 0.1  # the policy has moved away from the reference


@pytest.mark.parametrize("micro", [13, *thorough(1, 40)])
@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_micro_batches_of_unequal_masks_give_the_same_step(algorithm: str, micro: int) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(PROMPTS, generator())
    assert rollout.mask is not None and not rollout.mask.all()
    whole, figures = _update(algorithm, policy, rollout)
    pieces, same_figures = _update(algorithm, policy, rollout, micro_batch_size=micro)
    assert difference(whole, policy) > 1e-3
    assert difference(whole, pieces) < 1e-5
    assert figures == pytest.approx(same_figures, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_masked_steps_have_no_influence(algorithm: str) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(PROMPTS, generator())
    spoilt = copy.deepcopy(rollout)
    assert spoilt.mask is not None and spoilt.kl is not None
    for tensor in (spoilt.log_probs, spoilt.values, spoilt.rewards, spoilt.kl):
        tensor[~spoilt.mask] = -200.0
    learnt, figures = _update(algorithm, policy, rollout, normalize_rewards=True)
    same, same_figures = _update(algorithm, policy, spoilt, normalize_rewards=True)
    assert difference(learnt, same) < 1e-6
    assert figures == pytest.approx(same_figures, abs=1e-6)


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_the_entropy_bonus_raises_the_entropy(algorithm: str) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(PROMPTS, generator())
    rollout.rewards.zero_()
    rollout.values.zero_()
    options: dict[str, Any] = {"kl_coefficient": 0.0, "epochs": 1} if "epochs" in _ALGORITHMS[algorithm] else {}
    options |= {"kl_coefficient": 0.0, "entropy_coefficient": 0.5}
    learner, figures = _update(algorithm, policy, rollout, **options)
    with torch.no_grad():
        after = learner.evaluate(rollout.observations, rollout.actions.T).entropies[rollout.mask.T].mean()
    assert after.item() > figures["entropy"] + 1e-3


class _Part(Processes):
    """One of several processes, whose sums are not exchanged."""

    def sum_gradients(self, parameters: Any) -> None: ...


@pytest.mark.parametrize("processes", [2, 30])
def test_the_processes_gradients_add_up_to_that_of_one(processes: int) -> None:
    policy, rollout = texts()
    batch, parameters = batch_of(policy, rollout), list(policy.parameters())

    def gradient(processes: Processes) -> tuple[list[Tensor], dict[str, float]]:
        ppo = create("ppo", micro_batch_size=20)
        ppo.setup(policy)
        ppo.processes = processes
        figures = accumulate(ppo, batch, partial(ppo.regularized, policy), batch.index, parameters)
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters], figures

    whole, figures = gradient(Processes())
    parts = [gradient(_Part(rank, processes)) for rank in range(processes)]
    for i, expected in enumerate(whole):
        torch.testing.assert_close(torch.stack([g[i] for g, _ in parts]).sum(0), expected, atol=1e-6, rtol=1e-5)
    for name, value in figures.items():
        assert value == pytest.approx(sum(part_figures.get(name, 0.0) for _, part_figures in parts), abs=1e-6)


def test_minibatch_sizes_are_in_steps_that_count() -> None:
    policy, rollout = texts()
    assert rollout.mask is not None
    batch, mean = batch_of(policy, rollout), rollout.mask.sum().item() / len(PROMPTS)
    assert 1 < mean < 5
    assert batch.elements(1) == 1 and batch.elements(rollout.mask.sum().item()) == len(PROMPTS)
    assert batch.elements(math.ceil(4 * mean)) == 4
    minibatches = list(batch.minibatches(math.ceil(5 * mean), 2, generator()))
    assert [len(m) for m in minibatches] == [5, 5, 5, 5, 4] * 2
    assert sorted(torch.cat(minibatches[:5]).tolist()) == list(range(24))


def test_only_the_share_of_elements_with_the_largest_advantages_is_used() -> None:
    policy, rollout = texts()
    assert rollout.mask is not None
    advantages = torch.randn(rollout.rewards.shape, generator=generator(1))
    mean = (advantages.abs() * rollout.mask).sum(0) / rollout.mask.sum(0)  # (num_texts,)
    expected = sorted(mean.topk(6).indices.tolist())
    batch = batch_of(policy, rollout, torch.where(rollout.mask, advantages, 1e9))
    for epochs in (1, 2):
        made = create("ppo", advantage_share=0.25, epochs=epochs)
        minibatches = list(made.minibatches(batch, generator()))
        assert sorted(torch.cat(minibatches).tolist()) == sorted(expected * epochs)


@pytest.mark.parametrize("fits", [5, 1])
def test_out_of_memory_halves_the_micro_batch_and_changes_nothing_else(fits: int) -> None:
    policy, rollout = texts()
    expected, _ = _update("ppo", policy, rollout)
    evaluate, sizes = SequencePolicy.evaluate, []

    class Small(SequencePolicy):
        def evaluate(self, observations: Any, actions: Tensor) -> Any:
            sizes.append(len(observations))
            result = evaluate(self, observations, actions)
            if len(observations) > fits:
                (result.log_probs.sum() * 3).backward()  # leaves a gradient behind
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB. And so on.")
            return result

    small = copy.deepcopy(policy)
    small.__class__ = Small
    ppo = create("ppo", **_ALGORITHMS["ppo"])
    ppo.setup(small)
    with pytest.warns(UserWarning, match="micro_batch_size="):
        ppo.update(small, rollout, generator=generator(1))
    assert difference(expected, small) < 1e-5
    assert sum(size > fits for size in sizes) <= 5  # halved only once for all minibatches
    assert max(sizes[6:]) <= fits


def test_too_little_memory_for_one_element_is_an_error() -> None:
    policy, rollout = texts()

    def fail(observations: Any, actions: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")

    policy.evaluate = fail  # type: ignore[method-assign]
    ppo = create("ppo")
    ppo.setup(policy)
    with pytest.warns(UserWarning), pytest.raises(RunError, match=r"CUDA out of memory\. .*gradient_checkpointing"):
        ppo.update(policy, rollout, generator=generator())


def test_matrices_decay_but_biases_and_gains_do_not() -> None:
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
    assert decayed == {"actor", "linear.weight"}  # the critic is 0
    assert torch.allclose(policy.linear.weight, before["linear.weight"] * 0.95)


@pytest.mark.parametrize(("schedule", "half"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)])
def test_schedules(schedule: Any, half: float) -> None:
    def factor(schedule: Any, warmup: float, remaining: float) -> float:
        ppo: Any = create("ppo", learning_rate=1.0, learning_rate_schedule=schedule, warmup=warmup)
        ppo.optimizer = torch.optim.SGD([torch.zeros(1)])
        learning_rate = schedule_learning_rate(ppo, remaining)
        assert ppo.optimizer.param_groups[0]["lr"] == learning_rate
        return learning_rate

    assert factor(schedule, 0.0, 1.0) == 1.0
    assert factor(schedule, 0.0, 0.5) == pytest.approx(half)
    assert factor(schedule, 0.2, 1.0) == pytest.approx(0.1)
    assert factor(schedule, 0.2, 0.9) == pytest.approx(0.55)
    assert factor(schedule, 0.2, 0.4) == pytest.approx(half)
    assert factor("linear", 0.0, 0.0) == 0.0
    assert factor("cosine", 0.0, 0.25) == pytest.approx((1 - math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize("made", [create, lambda id, **options: algorithms.get(id)(**options)])
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"learning_rate": math.nan}),
        ("ppo", {"learning_rate": 0}),
        ("ppo", {"adam_beta1": 1.0}),
        ("ppo", {"value_clip_range": -1.0}),
        ("ppo", {"gamma": 1.5}),
        ("ppo", {"epochs": 0}),
        ("ppo", {"gae_lambda": -0.1}),
        ("ppo", {"value_epochs": -1}),
        ("ppo", {"value_warmup": 2}),  # without value_epochs
        ("ppo", {"value_rollouts": 3}),
        ("ppo", {"contrast_prompts": ["glam", "brief"]}),  # without contrast_coefficient
        ("appo", {"micro_batch_size": 8}),
        ("appo", {"rho_bar": 0.0}),
        ("appo", {"clip_range": 0.0}),
        ("a2c", {"rms_alpha": 1.0}),
        ("a2c", {"micro_batch_size": 0}),
        ("trpo", {"damping": -1}),
        ("trpo", {"line_search_factor": 1.0}),
        ("trpo", {"target_kl": 0}),
        ("nlpo", {"target_update_iterations": 0}),
        ("rloo", {"kl_coefficient": -0.1}),
        ("grpo", {"kl_target": 0.5}),  # without kl_coefficient
        ("reinforce_pp", {"warmup": 1.0}),
    ],
)
def test_an_invalid_option_is_named(algorithm: str, options: dict[str, float], made: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        made(algorithm, **options)


@pytest.mark.parametrize("algorithm", _ALGORITHMS)
def test_state_is_restored(algorithm: str) -> None:
    policy = _policy(algorithm)
    rollout = policy.write(PROMPTS, generator())
    options = {**_ALGORITHMS[algorithm], "kl_coefficient": 0.1, "kl_target": 1.0}
    first = create(algorithm, **options)
    first.setup(policy)
    first.update(policy, rollout, generator=generator())
    again = create(algorithm, **options)
    again.load_state_dict(first.state_dict())
    assert again.state_dict() == first.state_dict() and first.kl.coefficient == pytest.approx(0.098)
