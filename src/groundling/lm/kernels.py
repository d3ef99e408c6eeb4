"""Faster CPU kernels for language models.

T5 adds a relative position bias to its attention scores, and materialises the bias, scores and probabilities for each
head, query and key: 400 MB each for 3,500 tokens and 8 heads. Here, when gradients are disabled, the bias is a table
indexed by the ``2 * length - 1`` distances, and each query uses a window of this table.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from groundling.runtime.devices import activated


class FastKernels(TorchFunctionMode):
    """Use faster CPU kernels for single-query attention and, without gradients, activations; equal up to rounding."""

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
    # For a single query, the fused kernel takes up to twice as long as two matrix products.
    if query.shape[-2] != 1 or enable_gqa or attn_mask is None or attn_mask.dtype != query.dtype:
        return None
    scaled = query if scale == 1 else query * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scaled @ key.transpose(-1, -2) + attn_mask).softmax(-1) @ value


def _gelu(x: Tensor, approximate: str = "none") -> Tensor | None:
    fused = activated(x, "gelu", approximate)
    if fused is not None:
        return fused
    # (1 + tanh u) / 2 = σ(2u), and the sigmoid kernel takes a tenth of the tanh kernel's time.
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


# T5's encoder on long prompts

LONG = 128  # Minimum length at which block attention is faster than T5's own attention


def use_block_attention(model: nn.Module) -> None:
    """Replace the self-attention classes of a T5 or mT5 encoder, in place."""
    from transformers.models.mt5.modeling_mt5 import MT5Attention
    from transformers.models.t5.modeling_t5 import T5Attention

    for module in model.modules():
        kind: Any = type(module)
        if kind in (T5Attention, MT5Attention) and not module.is_decoder:
            module.__class__ = _with_blocks(kind)


def reads_in_blocks(encoder: nn.Module, tokens: Tensor) -> bool:
    """Return True if ``encoder`` uses `BlockAttention` for ``tokens``: token ids or states (batch, length, ...)."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling():  # a trace must be valid for any length
        return False
    return (
        tokens.device.type == "cpu"
        and tokens.shape[1] >= LONG
        and not torch.is_grad_enabled()  # fused attention would materialise the bias
        and any(isinstance(module, BlockAttention) for module in encoder.modules())
    )


class BlockAttention(nn.Module):
    """T5's encoder self-attention; without gradients, long prompts are passed one by one to fused attention."""

    n_heads: int
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    relative_attention_bias: nn.Embedding
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    _relative_position_bucket: Any

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute T5's attention; for long prompts, ``position_bias`` is the bias table (heads, 2 * length - 1)."""
        # In half precision, T5 rounds scores before it adds the bias; block attention does not.
        half = hidden_states.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
        if half or not reads_in_blocks(self, hidden_states):
            return super().forward(hidden_states, mask, key_value_states, position_bias, past_key_values, **kwargs)
        assert mask is None or mask.is_floating_point(), "the mask must be additive: 0 for tokens"
        batch, length, _ = hidden_states.shape
        table = self._bias_by_distance(length) if position_bias is None else position_bias
        query, key, value = (
            part(hidden_states).view(batch, length, self.n_heads, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )  # each (batch, heads, length, size)
        attended = torch.zeros_like(query)
        for rows, span in _spans(mask):
            prompt = (rows, slice(None), span)
            attended[prompt] = _attend(query[prompt], key[prompt], value[prompt], table)
        return self.o(attended.transpose(1, 2).flatten(2)), table, None

    def _bias_by_distance(self, length: int) -> Tensor:
        """Return the bias for each distance from query to key, from ``1 - length`` to ``length - 1``."""
        buckets = self._relative_position_bucket(
            torch.arange(1 - length, length, device=self.relative_attention_bias.weight.device),
            bidirectional=True,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        return self.relative_attention_bias(buckets).T.contiguous()


@functools.cache
def _with_blocks(kind: Any) -> Any:
    return type(f"{kind.__name__}InBlocks", (BlockAttention, kind), {})


def _spans(mask: Tensor | None) -> list[tuple[slice, slice]]:
    """Return each prompt's row and the span of its tokens."""
    if mask is None:
        return [(slice(None), slice(None))]
    kept = (mask[:, 0, 0] == 0).int()  # (batch, length)
    spans = zip(kept.argmax(1).tolist(), kept.sum(1).tolist(), strict=True)
    return [(slice(row, row + 1), slice(first, first + count)) for row, (first, count) in enumerate(spans) if count]


def _attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """Compute attention for tensors (batch, heads, length, size) without gradients; ``table`` may be oversized."""
    length, middle = query.shape[2], table.shape[1] // 2
    # Queries are reversed so that their windows form a view of the table.
    windows = table[:, middle - length + 1 : middle + length].unfold(1, length, 1)
    return F.scaled_dot_product_attention(query.flip(2), key, value, attn_mask=windows[None], scale=1.0).flip(2)
