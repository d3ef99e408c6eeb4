"""The same operations by faster kernels, where PyTorch's own choice is a slow one.

On CPUs PyTorch multiplies float32 matrices by MKL, which on AMD's processors leaves half of the machine unused; oneDNN,
which PyTorch ships too, does not: on an EPYC with AVX-512 88 against 190 GFLOP/s of one core at 64 x 256 x 768.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_LEAST_WEIGHTS = 2**14
"""Smaller matrices take MKL less time than oneDNN's operator takes to begin: 8 against 15 µs at 64 x 64 x 64."""


class FastKernels(TorchFunctionMode):
    """Within this context linear layers and the attention of a single query are computed faster, on CPUs in float32.

    Results are the same to rounding. It is for computing without gradients, which oneDNN's operator does not give.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        faster = _FASTER.get(func)
        result = faster(*args, **(kwargs or {})) if faster else None
        return func(*args, **(kwargs or {})) if result is None else result


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if not _suits(x, weight):
        return None
    return _onednn_linear()(x, weight, bias)


def _addmm(bias: Tensor, x: Tensor, weight: Tensor, **scales: Any) -> Tensor | None:
    # What GPT-2 calls a convolution: its weights are the transposed ones of a linear layer.
    if scales or bias.dim() != 1 or not _suits(x, weight):
        return None
    return _onednn_linear()(x, weight.t(), bias)


@functools.cache
def _onednn_linear() -> Any:
    """As a scripted function, since a trace cannot hold the operator's empty list of scalars itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; nothing else runs without Python in it
        return torch.jit.CompilationUnit("""
def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]):
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
""").linear


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


def _suits(x: Tensor, weight: Tensor) -> bool:
    float32 = x.dtype == weight.dtype == torch.float32
    on_cpu = x.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return on_cpu and float32 and weight.dim() == 2 and weight.numel() >= _LEAST_WEIGHTS


_FASTER: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.gelu: _gelu,
    F.scaled_dot_product_attention: _attention,
}
