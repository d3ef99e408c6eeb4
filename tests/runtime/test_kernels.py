import copy

import pytest
import torch
from torch import Tensor, nn

from groundling.algorithms.trpo import _twice_differentiable
from groundling.runtime import devices
from groundling.runtime.devices import FastGRU


@pytest.fixture(autouse=True)
def _onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a processor on which oneDNN is faster."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(devices, "onednn_is_faster", lambda: True)


def _pair() -> tuple[nn.GRU, FastGRU]:
    """Return PyTorch's layer and the fast layer, with the same weights."""
    torch.manual_seed(0)
    fast = FastGRU(96, 80)
    plain = nn.GRU(96, 80)
    plain.load_state_dict(fast.state_dict())
    return plain, fast


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_fast_gru_and_its_gradients_are_the_same(length: int, batch: int) -> None:
    results: list[list[Tensor]] = []
    for layer in _pair():
        torch.manual_seed(1)
        x = torch.randn(length, batch, 96, requires_grad=True)
        first = torch.randn(1, batch, 80, requires_grad=True)
        states, last = layer(x, first)
        loss = (states * torch.randn_like(states)).sum() + (last * torch.randn_like(last)).sum()
        gradients = torch.autograd.grad(loss, [x, first, *layer.parameters()])
        with torch.no_grad():
            again, _ = layer(x, first)
        results.append([states.detach(), last.detach(), again, *gradients])
    assert not torch.equal(results[0][-1], results[1][-1])  # a different kernel
    for expected, got in zip(*results, strict=True):
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_second_order_gradients_need_fused_kernels_off() -> None:
    def curvature(layer: nn.GRU) -> tuple[Tensor, ...]:
        states, _ = layer(torch.ones(3, 2, 96), torch.ones(1, 2, 80))
        weights = list(layer.parameters())
        first = torch.autograd.grad(states.square().mean(), weights, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), weights)

    plain, fast = _pair()
    with _twice_differentiable():
        for expected, got in zip(curvature(plain), curvature(fast), strict=True):
            torch.testing.assert_close(got, expected)
    with pytest.raises(RuntimeError, match="used in the graph"):
        curvature(fast)


def test_other_inputs_are_left_to_pytorch() -> None:
    plain, fast = _pair()
    x, first = torch.randn(3, 2, 96), torch.randn(1, 2, 80)
    assert torch.equal(fast(x)[0], plain(x)[0])
    copies = [copy.deepcopy(layer).double() for layer in (plain, fast)]
    expected, got = (layer(x.double(), first.double())[0] for layer in copies)
    assert torch.equal(got, expected)
    with pytest.raises(RuntimeError, match="Expected"):
        fast(torch.randn(3, 2, 95), first)
