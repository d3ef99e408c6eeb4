import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from groundling.lm import LanguageModel
from groundling.lm.kernels import FastKernels
from groundling.lm.transformers_model import FastConv1D, speed_up_linear_layers
from groundling.runtime import devices
from groundling.runtime.devices import FastLinear, linear


@pytest.fixture
def onednn(monkeypatch):
    """Simulate a processor on which oneDNN is faster."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(devices, "onednn_is_faster", lambda: True)


def pair_of_layers(kind, inputs, outputs):
    """Return a layer and its faster copy."""
    plain = nn.Sequential(
        Conv1D(outputs, inputs) if kind == "conv" else nn.Linear(inputs, outputs, bias=kind == "bias")
    )
    fast = copy.deepcopy(plain)
    speed_up_linear_layers(fast)
    return plain, fast


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("kind", ["bias", "no bias", "conv"])
@pytest.mark.parametrize(
    ("shape", "outputs"),
    [((200, 160), 256), ((2, 150, 160), 256), ((9, 160), 4096), ((700, 512), 32), ((300, 1024), 128)],
)
def test_a_layer_and_its_gradients_are_the_same(kind, shape, outputs):
    torch.manual_seed(0)
    results = []
    x, pull = torch.randn(shape), torch.randn(*shape[:-1], outputs)
    for layer in pair_of_layers(kind, shape[-1], outputs):
        leaf = x.clone().requires_grad_()
        result = layer(leaf)
        (result * pull).sum().backward()
        results.append([result.detach(), leaf.grad, *(p.grad for p in layer.parameters())])
    for expected, got in zip(*results, strict=True):
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_only_large_products_use_onednn():
    _, fast = pair_of_layers("bias", 128, 256)
    assert "_Linear" in fast(torch.randn(128, 128)).grad_fn.name()
    assert "_Linear" not in fast(torch.randn(127, 128)).grad_fn.name()
    _, small = pair_of_layers("bias", 16, 16)
    assert "_Linear" not in small(torch.randn(2**15, 16)).grad_fn.name()


@pytest.mark.usefixtures("onednn")
def test_frozen_weights_get_no_gradient_and_pass_it_on():
    plain, fast = pair_of_layers("bias", 128, 256)
    fast.requires_grad_(False)
    x = torch.randn(200, 128, requires_grad=True)
    fast(x).sum().backward()  # an expanded gradient
    torch.testing.assert_close(x.grad, torch.autograd.grad(plain(x).sum(), x)[0], atol=1e-4, rtol=1e-4)
    assert all(p.grad is None for p in fast.parameters())


@pytest.mark.usefixtures("onednn")
def test_second_order_gradients_are_the_same():
    torch.manual_seed(0)
    x, gradients = torch.randn(200, 128), []
    for layer in pair_of_layers("bias", 128, 256):
        weights = list(layer.parameters())
        first = torch.autograd.grad(layer(x).tanh().pow(2).mean(), weights, create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), weights)
        gradients.append([*first, *second])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.usefixtures("onednn")
def test_results_without_gradients_and_in_a_trace_are_the_same():
    torch.manual_seed(0)
    for kind in ("bias", "conv"):
        plain, fast = pair_of_layers(kind, 160, 256)
        with torch.no_grad():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # for tensors converted to numbers
                traced = torch.jit.trace(fast, torch.randn(3, 160), check_trace=False)
            for x in (torch.randn(5, 160), torch.randn(2, 7, 160), torch.randn(0, 160)):
                torch.testing.assert_close(fast(x), plain(x), atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(traced(x), plain(x), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_other_dtypes_are_left_to_pytorch():
    x, weight = torch.randn(200, 128), torch.randn(256, 128)
    for dtype in (torch.bfloat16, torch.float64):
        torch.testing.assert_close(
            linear(x.to(dtype), weight.to(dtype), None), F.linear(x.to(dtype), weight.to(dtype))
        )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, weight, None).dtype == torch.bfloat16


def test_language_models_use_fast_layers_and_save_plain_ones(make_lm, tmp_path):
    for family, kind in (("t5", FastLinear), ("gpt2", FastConv1D)):
        lm = make_lm(family)
        assert any(type(module) is kind for module in lm.model.modules())
        assert not any(type(module) in (nn.Linear, Conv1D) for module in lm.model.modules())
        lm.save_pretrained(tmp_path / family)
        again = LanguageModel.from_pretrained(tmp_path / family)
        for name, weight in lm.model.state_dict().items():
            assert torch.equal(weight, again.model.state_dict()[name]), name


class Then(nn.Module):
    """A layer followed by a function."""

    def __init__(self, layer, then):
        super().__init__()
        self.layer, self.then = layer, then

    def forward(self, x):
        return self.then(self.layer(x))


def trace(module, example):
    with torch.no_grad(), warnings.catch_warnings(), FastKernels():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return torch.jit.trace(module, example)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("kind", ["bias", "no bias", "conv"])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU("tanh")])
@torch.no_grad()
def test_a_trace_fuses_a_layer_and_its_activation(kind, activation):
    torch.manual_seed(0)
    _, layer = pair_of_layers(kind, 160, 256)
    traced, x = trace(Then(layer, activation), torch.randn(2, 3, 160)), torch.randn(9, 7, 160)
    torch.testing.assert_close(traced(x), activation(layer(x)), atol=1e-4, rtol=1e-4)
    with torch.profiler.profile() as profile:
        traced(x)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["mkldnn::_linear_pointwise"] == 1
    assert not {"aten::relu", "aten::silu", "aten::gelu", "aten::sigmoid_"} & counts.keys()


@pytest.mark.usefixtures("onednn")
@torch.no_grad()
def test_activations_of_outputs_changed_in_place_are_not_fused():
    _, layer = pair_of_layers("bias", 160, 256)
    traced = trace(Then(layer, lambda y: F.relu(y.add_(1))), torch.randn(2, 160))
    x = torch.randn(9, 160)
    torch.testing.assert_close(traced(x), (layer(x) + 1).relu())


def test_fast_kernels_compute_the_same():
    torch.manual_seed(0)
    query, keys, mask = torch.randn(3, 2, 1, 8), torch.randn(3, 2, 5, 8), torch.zeros(3, 1, 1, 5)
    mask[0, ..., 3:] = torch.finfo(torch.float32).min
    x = torch.randn(6, 160)

    def compute():
        return (
            F.scaled_dot_product_attention(query, keys, keys, attn_mask=mask, scale=0.3),
            F.gelu(x, approximate="tanh"),
        )

    with torch.no_grad():
        expected = compute()
        with FastKernels():
            outputs = compute()
    for a, b in zip(outputs, expected, strict=True):
        assert not torch.equal(a, b)  # a different kernel
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
