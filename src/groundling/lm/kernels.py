"""Faster CPU kernels for the modules and functions of language models."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from groundling.runtime.devices import FastLinear, activated, linear


class FastConv1D(Conv1D):
    """GPT-2's `Conv1D`, a linear layer with transposed weights, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Compute a model's linear layers by `linear`; only their class changes."""
    faster = {nn.Linear: FastLinear, Conv1D: FastConv1D}
    for module in model.modules():
        if type(module) in faster:
            module.__class__ = faster[type(module)]


class FastKernels(TorchFunctionMode):
    """Use faster CPU kernels for single-query attention and activations without gradients; the same to rounding."""

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
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    # For one query the fused kernel takes up to twice the time of two products.
    if query.shape[-2] != 1 or enable_gqa or attn_mask is None or attn_mask.dtype != query.dtype:
        return None
    scaled = query if scale == 1 else query * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scaled @ key.transpose(-1, -2) + attn_mask).softmax(-1) @ value


def _gelu(x: Tensor, approximate: str = "none") -> Tensor | None:
    fused = activated(x, "gelu", approximate)
    if fused is not None:
        return fused
    # (1 + tanh u) / 2 = σ(2u), and the sigmoid's kernel takes a tenth of the time of the hyperbolic tangent's.
    if approximate != "tanh" or x.device.type != "cpu" or x.dtype != torch.float32:
        return None
    scale = math.sqrt(8 / math.pi)
    return (x * x).mul_(0.044715 * scale).add_(scale).mul_(x).sigmoid_().mul_(x)


_FASTER: dict[Any, Callable[..., Tensor | None]] = {
    F.gelu: _gelu,
    F.relu: lambda x, inplace=False: activated(x, "relu"),
    F.silu: lambda x, inplace=False: activated(x, "swish"),
    F.scaled_dot_product_attention: _attention,
}
