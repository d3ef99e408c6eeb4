"""The encoder, decoder body and head of a Transformers model, run apart, and what its config says of its layers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from groundling.errors import GroundlingError
from groundling.lm.kernels import reads_in_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _mlp(sizes: Sequence[int], bias: bool = True) -> nn.Sequential:
    if min(sizes) < 1:
        raise GroundlingError(f"a head's layers need at least 1 unit each, got sizes {list(sizes[1:-1])}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], bias=bias))


class ValueHead(nn.Module):
    """Computes the value of each prompt's state.

    Args:
        hidden_size: `LanguageModel.hidden_size`.
        hidden_sizes: Widths of hidden layers; empty: a linear head.
        bias: Give the last layer a bias.
    """

    def __init__(self, hidden_size: int, hidden_sizes: Sequence[int] = (1024, 1024), bias: bool = True) -> None:
        super().__init__()
        self.layers = _mlp([hidden_size, *hidden_sizes, 1], bias)

    def forward(self, state: Tensor) -> Tensor:
        """Return values (num_prompts,) of states (num_prompts, hidden_size)."""
        # Never (num_prompts, 1): that would broadcast against returns (num_prompts,), as in the released GLAM trainer.
        return self.layers(state).squeeze(-1)


class ActionHead(nn.Module):
    """Computes logits of a fixed set of actions instead of scoring texts (GLAM's NPAE and action-head ablations)."""

    def __init__(self, hidden_size: int, num_actions: int, hidden_sizes: Sequence[int] = (1024, 1024)) -> None:
        super().__init__()
        self.layers = _mlp([hidden_size, *hidden_sizes, num_actions])

    def forward(self, state: Tensor) -> Tensor:
        """Return logits (num_prompts, num_actions) of states (num_prompts, hidden_size)."""
        return self.layers(state)


_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
# Config keys of the span, for each kind of attention that has one.
_SPAN_KEYS = {_SLIDING: ("sliding_window", "window_size"), _CHUNKED: ("attention_chunk_size",)}


@dataclass(frozen=True)
class Layers:
    """Kinds of layers of a causal body or a decoder."""

    spans: Mapping[str, int | None]
    """Tokens of the window or chunk of each kind of attention, by Transformers' name; None: all tokens."""
    others: tuple[str, ...]  # Kinds that no attention mask describes: recurrent, convolutions, compressed attention

    @classmethod
    def of(cls, config: Any) -> Self:
        config = config.get_text_config(decoder=True)
        # Configs that do not list their layers have one kind.
        only = [kind for kind in _SPAN_KEYS if _span(config, kind)][:1] or [_FULL]
        kinds = getattr(config, "layer_types", None) or only
        spans = {kind: _span(config, kind) for kind in dict.fromkeys(kinds) if kind in (_FULL, *_SPAN_KEYS)}
        others = tuple(sorted({kind for kind in kinds if kind not in spans}))
        return cls(spans, others)

    @property
    def window(self) -> int | None:
        """The shortest span; None if all attention is full."""
        return min((span for span in self.spans.values() if span), default=None)

    def check_length(self, length: int) -> int:
        """Length for exactness checks: the shortest text computed like one of ``length`` tokens; 0: any short text."""
        return max((span + 1 for span in self.spans.values() if span and length > span), default=0)

    def masks(self, allowed: Tensor, rows: Tensor, columns: Tensor) -> Tensor | dict[str, Tensor]:
        """Masks in the form that Transformers' bodies take: one, or one for each kind of attention.

        ``allowed``: bool (batch, 1, rows, columns), the mask of full attention. ``rows`` (batch, rows) and ``columns``
        (batch, columns): int64, positions of queries and keys.
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
"""Keys and values of each layer, (1, heads, length, size)."""


class Backbone:
    """Runs the encoder, the decoder body (up to and with its final norm) and the head of a model, compiled or not.

    `logits` calls the model's own `forward` on the body's output, so that scaling, soft-capping and biases apply.
    """

    def __init__(self, model: PreTrainedModel, compiled: bool = False) -> None:
        from transformers import PreTrainedModel

        self.model = model
        self._last_states = _compiled() if compiled else _last_states
        self._compiled = compiled
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        body: Any = model.get_decoder()  # a model of its own; of some families something else
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
        """Largest difference by rounding of two correct results: more in half precision and on accelerators."""
        return (1e-3 if self.device.type == "cpu" else 5e-3) if self.exact else 0.2

    @property
    def why_not_replaceable(self) -> str | None:
        """Reason why the attention is not replaceable; None if each layer calls PyTorch's once on the whole text."""
        if self.is_encoder_decoder:
            return "its encoder reads a text as a whole"
        if self.layers.others or self.layers.window:
            return "not all of its layers attend to the whole text alike"
        if self.model.training:
            return "gradient checkpointing reads twice"
        if self._compiled:
            return "it is compiled"
        return None if self.model.config._attn_implementation == "sdpa" else "its attention is not PyTorch's own"

    def warn_once(self, message: str) -> None:
        """Warn, once per model and message."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=3)

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Run the encoder: (batch, length) token ids and 0/1 mask to states (batch, length, hidden)."""
        encoder = self.model.get_encoder()
        if reads_in_blocks(encoder, tokens) and not mask.all():
            # Transformers would make (batch, 1, length, length) of (batch, length).
            mask = self.attention_mask(mask.bool()[:, None, None])
        return self._last_states(encoder, {"input_ids": tokens, "attention_mask": mask})

    def decode(self, tokens: Tensor, states: Tensor, states_mask: Tensor, mask: Tensor | None) -> Tensor:
        """Run an encoder-decoder's decoder on (batch, rows) tokens to its final hidden states, (batch, rows, hidden).

        ``states`` (batch, length, hidden) are the encoder's; ``mask``: (batch, 1, rows, rows), None: causal attention.
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
        """Run a causal body on (batch, length) tokens to its final hidden states, (batch, length, hidden).

        Args:
            mask: (batch, 1, length, length), or one for each kind of layer, with columns for `before`, too. None:
                causal attention; rows are padded on the right, where nothing sees the padding.
            positions: (batch, length); None: those of unpadded texts.
            before: Memory of a text that all rows begin with.
        """
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if before is not None:
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(before):
                rows = (len(tokens), -1, -1, -1)
                cache.update(keys.expand(rows), values.expand(rows), layer)
            arguments |= {"past_key_values": cache, "use_cache": True}
        # Without a mask, some models would look for the pad token.
        arguments["attention_mask"] = torch.ones_like(tokens) if mask is None else mask
        if positions is not None:
            arguments["position_ids"] = positions
        return self._last_states(self.body, arguments)

    def remember(self, tokens: Tensor) -> Memory:
        """Return a causal body's memory of a text, (1, length) token ids."""
        cache = DynamicCache()  # keeps tokens beyond a window too: masks hide them
        self.body(input_ids=tokens, past_key_values=cache, use_cache=True)
        layers: list[Any] = cache.layers
        return [(layer.keys, layer.values) for layer in layers]

    def logits(self, states: Tensor) -> Tensor:
        """Return logits (rows, vocabulary), in the model's dtype, of final hidden states (rows, hidden)."""
        # Without autocast: where logits are far from 0, as GPT-2's, bfloat16 rounds log-probabilities to a few tenths.
        states = states.to(self.model.dtype)  # which autocast may have changed
        arguments: dict[str, Any] = {"input_ids": states.new_zeros((1, 1), dtype=torch.long), "use_cache": False}
        if self.is_encoder_decoder:
            arguments["decoder_input_ids"] = arguments.pop("input_ids")
            arguments["encoder_outputs"] = _EncoderOutput(last_hidden_state=states[None])
        with torch.autocast(states.device.type, enabled=False), _returning(self.body, states[None]):
            return self.model(**arguments).logits[0]

    def attention_mask(self, allowed: Tensor | dict[str, Tensor]) -> Any:
        """Convert a boolean 4D mask, or one for each kind of layer, to the form that the model's attention takes."""
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
    # One function for all models of a process: policy, values and reference of one architecture share its programs.
    # There are several: encoder and decoder, with and without gradients, a batch of one text.
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(_last_states, dynamic=True)


@dataclass
class _BodyOutput:
    """A body's output of any family: hidden states, and None for everything else."""

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
    """Let `body` return these states without computing, within this context."""
    hooked_forward = body.__dict__.get("forward")  # set by accelerate or a wrapper
    body.forward = lambda *_, **__: _BodyOutput(states)
    try:
        yield
    finally:
        if hooked_forward is None:
            del body.forward
        else:
            body.forward = hooked_forward
