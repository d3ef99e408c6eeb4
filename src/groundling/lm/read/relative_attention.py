"""T5's encoder on long prompts: nothing of prompt × prompt is laid out.

T5 adds a bias to each attention score that depends on how far a key lies from its query, and on nothing else. Its own
attention lays this bias out for each head, query and key, and the scores and probabilities likewise: 400 MB each for
3,500 tokens and 8 heads. Here the bias is a table of ``2 · length - 1`` distances, of which each query reads a window.
PyTorch's fused attention takes the windows as a view of the table, of a padded batch prompt by prompt. With gradients,
of which it would lay out the square, a layer's attention goes block of queries by block, and each block is computed
again in the backward pass. Results are those of T5's own products. The gain is a CPU's: what a block needs stays in its
cache.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

LONG, LONG_WITH_GRADIENTS = 128, 320
"""Tokens from which on prompts are read in this way: of shorter ones the square costs no more than its blocks."""
_SCORES = 2**18
"""Of a block: the megabyte that a CPU's cache holds."""


def read_long_prompts_in_blocks(model: nn.Module) -> None:
    """Let the self-attention of ``model``'s T5 encoder lay out no square: it changes its class, and nothing else."""
    from transformers.models.mt5.modeling_mt5 import MT5Attention
    from transformers.models.t5.modeling_t5 import T5Attention

    for module in model.modules():
        kind: Any = type(module)
        if kind in (T5Attention, MT5Attention) and not module.is_decoder:
            module.__class__ = _in_blocks(kind)


def reads_in_blocks(encoder: nn.Module, tokens: Tensor) -> bool:
    """Whether ``encoder`` lays out no square of ``tokens`` or states, (batch, length, …)."""
    if torch.jit.is_tracing() or torch.compiler.is_compiling():  # for any length, as loops are not
        return False
    least = LONG_WITH_GRADIENTS if torch.is_grad_enabled() else LONG
    return (
        tokens.device.type == "cpu"
        and tokens.shape[1] >= least
        and any(isinstance(module, _InBlocks) for module in encoder.modules())
    )


class _InBlocks(nn.Module):
    """Self-attention of an encoder, computed without its square where the prompt is long."""

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
        """As Transformers has it; of long prompts ``position_bias`` is the table, (heads, 2 · length - 1)."""
        # Half precision rounds scores before the bias comes to them, which blocks do not.
        rounds = hidden_states.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
        if rounds or not reads_in_blocks(self, hidden_states):
            return super().forward(hidden_states, mask, key_value_states, position_bias, past_key_values, **kwargs)
        assert mask is None or mask.is_floating_point(), "a mask is added to the scores: 0 where a token is"
        batch, length, _ = hidden_states.shape
        table = self._bias_by_distance(length) if position_bias is None else position_bias
        query, key, value = (
            part(hidden_states).view(batch, length, self.n_heads, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )  # each (batch, heads, length, size)
        places = None if torch.is_grad_enabled() else _places(mask)
        if places is None:
            attended = self._attend_in_blocks(query, key, value, table, mask)
        else:
            attended = torch.zeros_like(query)  # of padding
            for rows, place in places:
                prompts = (rows, slice(None), place)
                attended[prompts] = _attend(query[prompts], key[prompts], value[prompts], table)
        return self.o(attended.transpose(1, 2).flatten(2)), table, None

    def _attend_in_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, table: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The same, block of queries by block: for gradients PyTorch would lay out the square."""
        shape, length = query.shape, query.shape[2]
        query = query.flip(2)  # from the last query on, so that the windows of their distances lie in order
        query, key, value = (part.flatten(0, 1) for part in (query, key, value))
        hidden = None if mask is None else mask[:, :, 0].expand(-1, self.n_heads, -1).reshape(-1, 1, length)
        attended = torch.empty_like(query)  # at once: many small results would keep freed memory apart
        num_queries = max(1, _SCORES // (len(query) * length))
        for first in range(0, length, num_queries):
            block = slice(first, min(first + num_queries, length))
            inputs = (query[:, block], key, value, table[:, first : block.stop + length - 1], hidden)
            if torch.is_grad_enabled():
                attended[:, block] = checkpoint(_block, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                attended[:, block] = _block(*inputs)
        return attended.view(shape).flip(2)

    def _bias_by_distance(self, length: int) -> Tensor:
        """Of a key's place minus its query's, from ``1 - length`` to ``length - 1``."""
        buckets = self._relative_position_bucket(
            torch.arange(1 - length, length, device=self.relative_attention_bias.weight.device),
            bidirectional=True,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        return self.relative_attention_bias(buckets).T.contiguous()


@functools.cache
def _in_blocks(kind: Any) -> Any:
    """The class of T5's or mT5's attention with another way to compute it."""
    return type(f"{kind.__name__}InBlocks", (_InBlocks, kind), {})


def _places(mask: Tensor | None) -> list[tuple[slice, slice]] | None:
    """Rows and the places of their tokens, where those of each prompt stand together; None where they do not."""
    if mask is None:
        return [(slice(None), slice(None))]
    kept = (mask[:, 0, 0] == 0).int()  # (batch, length)
    counts, firsts, after = kept.sum(1), kept.argmax(1), kept.shape[1] - kept.flip(1).argmax(1)
    places = []
    for row, (count, first, last) in enumerate(zip(counts.tolist(), firsts.tolist(), after.tolist(), strict=True)):
        if not count:
            continue
        if last - first != count:
            return None
        places.append((slice(row, row + 1), slice(first, last)))
    return places


def _attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """Fused attention without gradients, each (batch, heads, length, size); the table may be of longer prompts."""
    length, middle = query.shape[2], table.shape[1] // 2
    # From the last query on, so that the windows of their distances lie in order: they are a view of the table.
    windows = table[:, middle - length + 1 : middle + length].unfold(1, length, 1)
    return scaled_dot_product_attention(query.flip(2), key, value, attn_mask=windows[None], scale=1.0).flip(2)


def _block(queries: Tensor, key: Tensor, value: Tensor, distances: Tensor, mask: Tensor | None) -> Tensor:
    """What some queries take in, (batch · heads, queries, size) like ``queries``, of all keys and values.

    ``distances`` (heads, queries + length - 1); ``mask`` (batch · heads, 1, length) is added to the scores.
    """
    bias = distances.unfold(1, key.shape[1], 1)  # (heads, queries, length)
    bias = bias.expand(len(key) // len(bias), -1, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(bias, queries, key.transpose(1, 2))
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ value
