"""Run the encoder, decoder body and head of a Transformers model separately, and describe its layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from groundling.errors import ConfigError, warn_caller
from groundling.lm.kernels import reads_in_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _mlp(sizes: Sequence[int], bias: bool = True) -> nn.Sequential:
    if min(sizes) < 1:
        raise ConfigError(f"each layer of a head needs at least 1 unit, got sizes {list(sizes[1:-1])}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=bias))


class ValueHead(nn.Module):
    """Maps each prompt's hidden state to a value.

    Args:
        hidden_size: `LanguageModel.hidden_size`.
        hidden_sizes: Widths of the hidden layers. If empty, the head is linear.
        bias: Add a bias to the last layer.
    """

    def __init__(self, hidden_size: int, hidden_sizes: Sequence[int] = (1024, 1024), bias: bool = True) -> None:
        super().__init__()
        self.layers = _mlp([hidden_size, *hidden_sizes, 1], bias)

    def forward(self, state: Tensor) -> Tensor:
        """Return values (num_prompts,) for states (num_prompts, hidden_size)."""
        # The released GLAM trainer keeps the shape (num_prompts, 1), which broadcasts against returns (num_prompts,).
        return self.layers(state).squeeze(-1)


class ActionHead(nn.Module):
    """Computes logits for a fixed set of actions without reading their text (GLAM's NPAE, action-head ablations)."""

    def __init__(self, hidden_size: int, num_actions: int, hidden_sizes: Sequence[int] = (1024, 1024)) -> None:
        super().__init__()
        self.layers = _mlp([hidden_size, *hidden_sizes, num_actions])

    def forward(self, state: Tensor) -> Tensor:
        """Return logits (num_prompts, num_actions) for states (num_prompts, hidden_size)."""
        return self.layers(state)


_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
# Config keys that store the window or chunk size (the span) of each attention type that has one.
_SPAN_KEYS = {_SLIDING: ("sliding_window", "window_size"), _CHUNKED: ("attention_chunk_size",)}


@dataclass(frozen=True)
class Layers:
    """The layer types of a causal model or a decoder."""

    spans: Mapping[str, int | None]
    """Window or chunk size of each attention type, keyed by Transformers' name; None for full attention."""
    others: tuple[str, ...]  # Types that no attention mask can describe: recurrence, convolution, compressed attention

    @classmethod
    def of(cls, config: Any) -> Self:
        config = config.get_text_config(decoder=True)
        # In models whose config does not list layer types, all layers have the same type.
        only = [kind for kind in _SPAN_KEYS if _span(config, kind)][:1] or [_FULL]
        kinds = getattr(config, "layer_types", None) or only
        spans = {kind: _span(config, kind) for kind in dict.fromkeys(kinds) if kind in (_FULL, *_SPAN_KEYS)}
        others = tuple(sorted({kind for kind in kinds if kind not in spans}))
        return cls(spans, others)

    @property
    def window(self) -> int | None:
        """The smallest window or chunk size; None if all layers use full attention."""
        return min((span for span in self.spans.values() if span), default=None)

    def check_length(self, length: int) -> int:
        """Return the shortest length that exceeds the same windows as ``length`` (0 if it exceeds none)."""
        return max((span + 1 for span in self.spans.values() if span and length > span), default=0)

    def masks(self, allowed: Tensor, rows: Tensor, columns: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the mask in the form that Transformers expects: a tensor, or a dict keyed by attention type.

        ``allowed`` is the mask for full attention, bool (batch, 1, rows, columns). ``rows`` (batch, rows) and
        ``columns`` (batch, columns) are the positions of queries and keys, int64.
        """
        if self.window is None or int(rows.max()) < self.window:
            return allowed
        queries, keys = rows[:, None, :, None], columns[:, None, None, :]
        masks = {}
        for kind, span in self.spans.items():
            if span is None:
                masks[kind] = allowed
            elif kind == _CHUNKED:
                masks[kind] = allowed & (queries // span == keys // span)
            else:
                masks[kind] = allowed & (queries - keys < span)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _span(config: Any, kind: str) -> int | None:
    if kind == _SLIDING and getattr(config, "use_sliding_window", True) is False:
        return None
    return next((span for name in _SPAN_KEYS.get(kind, ()) if (span := getattr(config, name, None))), None)


Memory = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, with shape (1, heads, length, size)."""


class Backbone:
    """Runs a model's encoder, decoder body (including its final norm) and head, optionally compiled.

    `logits` calls the model's own `forward` on the body's output, so scaling, soft-capping and biases are applied.
    """

    def __init__(self, model: PreTrainedModel, compiled: bool = False) -> None:
        from transformers import PreTrainedModel

        self.model = model
        self._last_states = _compiled() if compiled else _last_states
        self._compiled = compiled
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        body: Any = model.get_decoder()  # a `PreTrainedModel` in most families, but not in all
        if body is model or not isinstance(body, PreTrainedModel):
            body = next((child for child in model.children() if isinstance(child, PreTrainedModel)), body)
        self.body: nn.Module = body
        self.layers = Layers.of(model.config)
        self._warned: set[str] = set()

    @property
    def device(self) -> torch.device:
        embeddings: Any = self.model.get_input_embeddings()
        return embeddings.weight.device

    @property
    def exact(self) -> bool:
        return self.model.dtype == torch.float32 and not getattr(self.model, "is_quantized", False)

    @property
    def tolerance(self) -> float:
        """Largest rounding difference between correct results; higher in half precision and on accelerators."""
        return (1e-3 if self.device.type == "cpu" else 5e-3) if self.exact else 0.2

    @property
    def why_not_replaceable(self) -> str | None:
        """The reason why attention cannot be replaced; None if each layer calls PyTorch's attention once per text."""
        if self.is_encoder_decoder:
            return "its encoder reads a text as a whole"
        if self.layers.others or self.layers.window:
            return "not all of its layers attend to the whole text"
        if self.model.training:
            return "gradient checkpointing runs the forward pass twice"
        if self._compiled:
            return "it is compiled"
        return None if self.model.config._attn_implementation == "sdpa" else "it does not use PyTorch's attention"

    def warn_once(self, message: str) -> None:
        """Warn once per model and message."""
        if message not in self._warned:
            self._warned.add(message)
            warn_caller(message)

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Run the encoder on token ids and a 0/1 mask (batch, length); return states (batch, length, hidden)."""
        encoder = self.model.get_encoder()
        if reads_in_blocks(encoder, tokens) and not mask.all():
            # Transformers would expand (batch, length) to (batch, 1, length, length).
            mask = self.attention_mask(mask.bool()[:, None, None])
        return self._last_states(encoder, {"input_ids": tokens, "attention_mask": mask})

    def decode(self, tokens: Tensor, states: Tensor, states_mask: Tensor, mask: Tensor | None) -> Tensor:
        """Run the decoder of an encoder-decoder on tokens (batch, rows); return final states (batch, rows, hidden).

        ``states`` (batch, length, hidden) is the encoder's output; ``mask`` is (batch, 1, rows, rows), None if causal.
        """
        arguments = {
            "input_ids": tokens,
            "attention_mask": mask,
            "encoder_hidden_states": states,
            "encoder_attention_mask": states_mask,
            "use_cache": False,
        }
        return self._last_states(self.body, arguments)

    def read(
        self,
        tokens: Tensor,
        mask: Tensor | dict[str, Tensor] | None,
        positions: Tensor | None,
        before: Memory | None = None,
    ) -> Tensor:
        """Run a causal model's body on tokens (batch, length); return the final hidden states (batch, length, hidden).

        Args:
            mask: (batch, 1, length, length), or one for each layer type, including the columns of `before`. If None,
                attention is causal, and rows must be padded on the right, so that no token attends to the padding.
            positions: (batch, length). If None, the positions of unpadded texts are used.
            before: Keys and values of a prefix that all rows share (see `remember`).
        """
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if before is not None:
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(before):
                rows = (len(tokens), -1, -1, -1)
                cache.update(keys.expand(rows), values.expand(rows), layer)
            arguments |= {"past_key_values": cache, "use_cache": True}
        # Without a mask, some models would infer one from the pad token.
        arguments["attention_mask"] = torch.ones_like(tokens) if mask is None else mask
        if positions is not None:
            arguments["position_ids"] = positions
        return self._last_states(self.body, arguments)

    def remember(self, tokens: Tensor) -> Memory:
        """Return a causal model's keys and values for a text's token ids (1, length)."""
        cache = DynamicCache()  # also keeps tokens outside a window; masks hide them
        self.body(input_ids=tokens, past_key_values=cache, use_cache=True)
        layers: list[Any] = cache.layers
        return [(layer.keys, layer.values) for layer in layers]

    def logits(self, states: Tensor) -> Tensor:
        """Return logits (rows, vocabulary), in the model's dtype, for final hidden states (rows, hidden)."""
        # Autocast is off: in bfloat16, logits far from 0, such as GPT-2's, have rounding errors of a few tenths.
        states = states.to(self.model.dtype)  # autocast may have changed the dtype
        arguments: dict[str, Any] = {"input_ids": states.new_zeros((1, 1), dtype=torch.long), "use_cache": False}
        if self.is_encoder_decoder:
            arguments["decoder_input_ids"] = arguments.pop("input_ids")
            arguments["encoder_outputs"] = _EncoderOutput(last_hidden_state=states[None])
        with torch.autocast(states.device.type, enabled=False), _returning(self.body, states[None]):
            return self.model(**arguments).logits[0]

    def attention_mask(self, allowed: Tensor | dict[str, Tensor]) -> Any:
        """Convert a boolean 4D mask, or one for each layer type, to the form that the model's attention expects."""
        if isinstance(allowed, dict):
            return {kind: self.attention_mask(mask) for kind, mask in allowed.items()}
        if self.model.config._attn_implementation == "sdpa":
            return allowed
        added = torch.zeros(allowed.shape, dtype=self.model.dtype, device=allowed.device)
        return added.masked_fill_(~allowed, torch.finfo(self.model.dtype).min)


def _last_states(part: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    return part(**arguments).last_hidden_state


@functools.cache
def _compiled() -> Callable[[nn.Module, Mapping[str, Any]], Tensor]:
    # All models in a process share this function, so a policy, value model and reference with the same architecture
    # share its graphs. Encoders, decoders, single texts, and passes with and without gradients have separate graphs.
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(_last_states, dynamic=True)


@dataclass
class _BodyOutput:
    """The output of a model's body in any model family: hidden states, and None for all other fields."""

    last_hidden_state: Tensor

    def __getitem__(self, index: int) -> Tensor | None:
        return None if index else self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None


@dataclass
class _EncoderOutput(BaseModelOutput):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _returning(body: nn.Module, states: Tensor) -> Iterator[None]:
    """Within this context, make `body` return these states without computing anything."""
    hooked_forward = body.__dict__.get("forward")  # set by accelerate or a wrapper
    body.forward = lambda *_, **__: _BodyOutput(states)
    try:
        yield
    finally:
        if hooked_forward is None:
            del body.forward
        else:
            body.forward = hooked_forward
