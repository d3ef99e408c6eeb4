"""The same operations by faster kernels, where PyTorch's own choice is a slow one.

On CPUs PyTorch multiplies float32 matrices by MKL, which on AMD's processors leaves half of the machine unused; oneDNN,
which PyTorch ships too, does not: on an EPYC with AVX-512 92 against 217 GFLOP/s of one core at 500 x 512 x 2048.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

_LEAST_WEIGHTS = 2**14
"""Smaller matrices take MKL less time than oneDNN's operator takes to begin: 8 against 15 µs at 64 x 64 x 64."""
_LEAST_PRODUCTS = 2**22
"""With gradients a layer is a Python function, which fewer multiplications than these do not repay."""


class FastLinear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class FastConv1D(Conv1D):
    """What GPT-2 calls a convolution, a linear layer with its weights transposed, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let ``model``'s linear layers compute by `linear`: they change their class, and nothing else."""
    faster = {nn.Linear: FastLinear, Conv1D: FastConv1D}
    for module in model.modules():
        if type(module) in faster:
            module.__class__ = faster[type(module)]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` of (..., inputs) by (outputs, inputs) and (outputs,), by the fastest kernel.

    The same to rounding, gradients and their gradients too.
    """
    if torch.compiler.is_compiling() or not _suits(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _onednn_linear()(x, weight, bias)
    if x.numel() * len(weight) < _LEAST_PRODUCTS:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    """A linear layer whose gradients are products by the same kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear()(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # A gradient's own gradient, as in TRPO's curvature, needs operators that have one.
        product = F.linear if torch.is_grad_enabled() else _onednn_linear()
        rows, inputs = gradient.flatten(0, -2).contiguous(), x.flatten(0, -2).contiguous()
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(rows, weight.t(), None).view(x.shape) if of_x else None,
            _gradient_of_weight(product, rows, inputs, weight) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _gradient_of_weight(
    product: Callable[..., Tensor], rows: Tensor, inputs: Tensor, weight: Tensor
) -> Tensor:
    """``rows.T @ inputs``, of (num_rows, outputs) and (num_rows, inputs), with as little copied as can be.

    The operator copies its first argument if that is transposed, and autograd a gradient that does not lie as its
    weight does.
    """
    transposed = weight.stride(0) == 1
    if rows.numel() + transposed * weight.numel() <= inputs.numel() + (not transposed) * weight.numel():
        return product(rows.t(), inputs.t(), None)
    return product(inputs.t(), rows.t(), None).t()


@functools.cache
def _onednn_linear() -> Any:
    """As a scripted function, since a trace cannot hold the operator's empty list of scalars itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; nothing else runs without Python in it
        return torch.jit.CompilationUnit("""
def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]):
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
""").linear


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= _LEAST_WEIGHTS
        and not torch.is_autocast_enabled("cpu")
        and _onednn_is_faster()
    )


@functools.cache
def _onednn_is_faster() -> bool:
    # Told by what the processor is and not by a trial, so that a run that is resumed computes the same again.
    processor: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = str(processor.get("cpu_name", "")).startswith("AMD")
    return amd and bool(processor.get("avx512_f")) and torch.backends.mkldnn.is_available()


class FastKernels(TorchFunctionMode):
    """Within this context the attention of a single query and GPT-2's activation are computed faster, on CPUs.

    Results are the same to rounding. It is for computing without gradients.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        faster = _FASTER.get(func)
        result = faster(*args, **(kwargs or {})) if faster else None
        return func(*args, **(kwargs or {})) if result is None else result


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor | None:
    # The fused kernel is made for many queries; for one it takes up to twice the time of two products.
    if query.shape[-2] != 1 or enable_gqa or attn_mask is None or attn_mask.dtype != query.dtype:
        return None
    scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scaled @ key.transpose(-1, -2) + attn_mask).softmax(-1) @ value


def _gelu(x: Tensor, approximate: str = "none") -> Tensor | None:
    # By a sigmoid, (1 + tanh u) / 2 = σ(2u), whose kernel takes a tenth of the time of the hyperbolic tangent's.
    if approximate != "tanh" or x.device.type != "cpu" or x.dtype != torch.float32:
        return None
    scale = math.sqrt(8 / math.pi)
    return (x * x).mul_(0.044715 * scale).add_(scale).mul_(x).sigmoid_().mul_(x)


_FASTER: dict[Any, Callable[..., Tensor | None]] = {
    F.gelu: _gelu,
    F.scaled_dot_product_attention: _attention,
}
