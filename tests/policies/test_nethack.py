from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from groundling.algorithms.optimisation import make_adamw
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.policies.policy import Segment


def _observations(count: int, distinct: int = 1000, seed: int = 0) -> NetHackObservations:
    """Return random observations with at most ``distinct`` different windows and messages."""
    generator = np.random.default_rng(seed)
    chars = generator.integers(32, 127, (distinct, 12, 12)).astype(np.uint8)
    colours = generator.integers(0, 16, (distinct, 12, 12)).astype(np.uint8)
    messages = generator.integers(0, 127, (distinct, 256)).astype(np.uint8)
    windows = generator.integers(distinct, size=count)
    return NetHackObservations(
        chars[windows],
        colours[windows],
        generator.normal(size=(count, 27)).astype(np.float32),
        messages[generator.integers(distinct, size=count)],
    )


def _policy(core: str = "gru") -> NetHackPolicy:
    torch.manual_seed(0)
    return NetHackPolicy(23, hidden_size=16, core=core, recurrence=5)


def _segments(seen: NetHackObservations, starts: Tensor, memory: Tensor) -> list[Segment]:
    """Return one segment for each column of ``(num_steps, num_envs)``."""
    num_envs = starts.shape[1]
    return [Segment(seen[np.arange(i, len(seen), num_envs)], memory[i], starts[:, i]) for i in range(num_envs)]


def test_the_originals_network_has_its_number_of_parameters() -> None:
    image = (3 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 128 + (128 * 3 * 3 + 1) * 512
    vector, message = (27 + 1) * 128 + (128 + 1) * 128, (256 + 1) * 128 + (128 + 1) * 128
    gru = 3 * 512 * (512 + 128 + 27 + 128 + 512 + 2)
    heads = (512 + 1) * 23 + 512 + 1
    policy = NetHackPolicy(23)
    assert sum(p.numel() for p in policy.parameters()) == image + vector + message + gru + heads == 2_795_640
    assert policy.memory_size == 512 and policy.recurrence == 32
    assert NetHackPolicy(23, core="lstm").memory_size == 1024


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_segments_are_evaluated_as_they_were_acted(core: str) -> None:
    policy, steps, envs = _policy(core), 5, 3
    seen = _observations(steps * envs)
    starts = torch.zeros(steps, envs, dtype=torch.bool)
    starts[0, 1] = starts[2, 0] = starts[2, 2] = starts[4, 0] = True
    first = memory = torch.randn(envs, policy.memory_size)
    acted = []
    for t in range(steps):
        action = policy.act(
            seen[t * envs : (t + 1) * envs],
            memory=memory * ~starts[t, :, None],
            generator=torch.Generator().manual_seed(t),
        )
        memory = action.memory
        acted.append(action)
    actions = torch.stack([a.actions for a in acted], dim=1)  # (envs, steps)
    evaluation = policy.evaluate(_segments(seen, starts, first), actions)
    torch.testing.assert_close(evaluation.log_probs, torch.stack([a.log_probs for a in acted], 1))
    torch.testing.assert_close(evaluation.values, torch.stack([a.values for a in acted], 1))
    assert evaluation.log_distributions().shape == (envs, steps, 23)
    torch.testing.assert_close(
        policy.values([seen[0], seen[1], seen[2]], first * ~starts[0, :, None]), acted[0].values
    )


def test_no_gradient_and_no_memory_crosses_an_episodes_beginning() -> None:
    policy = _policy()
    seen, memory = _observations(5), torch.randn(1, 16, requires_grad=True)
    starts = torch.tensor([False, False, True, False, False])[:, None]
    values = policy.evaluate(_segments(seen, starts, memory), torch.zeros(1, 5, dtype=torch.int64)).values
    assert torch.autograd.grad(values[0, 1], memory, retain_graph=True)[0].abs().sum() > 0
    assert torch.autograd.grad(values[0, 2:].sum(), memory)[0].abs().sum() == 0


def test_computing_distinct_crops_and_messages_once_changes_no_gradient() -> None:
    policy = _policy()
    seen = _observations(40, distinct=7)
    weights = torch.randn(40, 795)
    (policy.features([seen]) * weights).sum().backward()
    shared = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    for i in range(40):  # a single frame has nothing to share
        (policy.features([seen[i : i + 1]]) * weights[i : i + 1]).sum().backward()
    assert len(shared) == 16
    for name, parameter in policy.named_parameters():
        if name in shared:
            torch.testing.assert_close(shared[name], parameter.grad, rtol=1e-4, atol=1e-4)


def test_windows_are_computed_once_while_the_weights_do_not_change() -> None:
    policy, seen = _policy(), _observations(30, distinct=7)
    computed: list[int] = []
    policy.image.register_forward_hook(lambda module, inputs, output: computed.append(len(output)))
    fresh = _policy()
    with torch.no_grad(), policy.unchanged():
        first, again = policy.features([seen]), policy.features([seen])
        torch.testing.assert_close(first, fresh.features([seen[np.arange(29, -1, -1)]]).flip(0))
    assert torch.equal(first, again) and computed == [7]
    optimizer = make_adamw(policy, 0.1)
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with torch.no_grad(), policy.unchanged():
        changed = policy.features([seen])
    assert computed == [7, 7] and (changed - first).abs().max() > 0.01


def test_weights_are_orthogonal_and_come_back_from_their_file(tmp_path: Path) -> None:
    policy = _policy()
    gate = policy.core.weight_hh_l0[16:32]
    torch.testing.assert_close(gate @ gate.T, torch.eye(16))
    policy.save_pretrained(tmp_path)
    again = NetHackPolicy(23, hidden_size=16)
    again.load_weights(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))
    assert (tmp_path / "nethack.safetensors").stat().st_size < 4.2 * sum(p.numel() for p in policy.parameters())
