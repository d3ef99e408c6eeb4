"""The parts of a Transformers model that scoring needs one by one: encoder, decoder body, and head."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from groundling.lm.read.layers import Layers
from groundling.lm.read.relative_attention import reads_in_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Memory = list[tuple[Tensor, Tensor]]
"""Of each layer, keys and values (1, heads, length, size)."""


class Backbone:
    """Runs the encoder, the decoder body (up to and with its final norm) and the head of a model apart.

    `logits` goes through the model's own `forward` with the body's answer given to it, so that whatever a model does
    between body and logits (scaling, soft-capping, a bias) is done, without this class knowing of it.

    Args:
        model: The model.
        compiled: Whether encoder and body go through `torch.compile`.
    """

    def __init__(self, model: PreTrainedModel, compiled: bool = False) -> None:
        self.model = model
        self._last_states = _compiled_last_states if compiled else _last_states
        self._compiled = compiled
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.body = _body_of(model)
        self.layers = Layers.of(model.config)
        self._takes_positions = "position_ids" in inspect.signature(self.body.forward).parameters

    @property
    def why_not_plain(self) -> str | None:
        """None where a pass goes once through PyTorch's fused attention in each layer, for all to see; or why not."""
        if self.model.training:
            return "gradient checkpointing reads twice"
        if self._compiled:
            return "it is compiled"
        return None if self.model.config._attn_implementation == "sdpa" else "its attention is not PyTorch's own"

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        embeddings: Any = self.model.get_input_embeddings()
        return embeddings.weight.device

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The encoder's states: (batch, length) token ids and 0/1 mask to (batch, length, hidden)."""
        encoder = self.model.get_encoder()
        if reads_in_blocks(encoder, tokens) and not mask.all():
            # Of (batch, length) Transformers would make (batch, 1, length, length).
            mask = self.additive(mask.bool()[:, None, None])
        return self._last_states(encoder, {"input_ids": tokens, "attention_mask": mask})

    def decode(self, tokens: Tensor, states: Tensor, states_mask: Tensor, mask: Tensor | None) -> Tensor:
        """The decoder's final hidden states, (batch, rows, hidden).

        `tokens` (batch, rows); `states` (batch, length, hidden) and `states_mask` (batch, length) of the encoder;
        `mask` (batch, 1, rows, rows), None for plain causal attention.
        """
        arguments = {
            "input_ids": tokens,
            "attention_mask": mask,
            "encoder_hidden_states": states,
            "encoder_attention_mask": states_mask,
            "use_cache": False,
        }
        return self._last_states(self.body, arguments)

    def remember(self, tokens: Tensor) -> Memory:
        """What a causal body remembers of a text, (1, length) token ids, for texts that begin with it."""
        cache = DynamicCache()  # which keeps all tokens, those beyond a window too: masks tell what is seen
        self.body(input_ids=tokens, past_key_values=cache, use_cache=True)
        layers: list[Any] = cache.layers
        return [(layer.keys, layer.values) for layer in layers]

    def begin(self, tokens: Tensor) -> tuple[Tensor, dict[str, Cache]]:
        """A causal body's final hidden states of texts of one length, (batch, length) token ids, and its own memory:
        Transformers' cache of whatever its layers keep, keys and values or recurrent states, under the body's name.
        """
        output = self.body(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=True)
        memory = {name: value for name, value in output.items() if isinstance(value, Cache)}
        if not memory:
            raise ValueError("it remembers in a way of its own")
        return output.last_hidden_state, memory

    def go_on(self, memory: dict[str, Cache], length: int, owners: Tensor, tokens: Tensor, one_by_one: bool) -> Tensor:
        """Final hidden states (rows, more, hidden) of what follows texts that `begin` has read.

        `owners` (rows,) tells which of the texts, of so many tokens each, a row goes on; `tokens` (rows, more) with
        padding on the right. The memory is used up. `one_by_one`: one token at a time.
        """
        for cache in memory.values():
            cache.reorder_cache(owners)  # type: ignore[arg-type]
            if not one_by_one:
                _keep_as_it_is(cache)
        hidden = []
        end = length
        for part in tokens.split(1 if one_by_one else tokens.shape[1], dim=1):
            end += part.shape[1]
            # Bodies of nothing but states take a mask for no more than what they read now.
            mask = tokens.new_ones(len(tokens), end) if self.layers.spans else None
            arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": True}
            if self._takes_positions and self.layers.others:
                # Some bodies ask their first layer how much was read, and a state does not tell.
                positions = torch.arange(end - part.shape[1], end, device=tokens.device)
                arguments["position_ids"] = positions.expand(len(tokens), -1)
            hidden.append(_last_states(self.body, {"input_ids": part} | arguments | memory))
        return torch.cat(hidden, dim=1)

    def read(
        self,
        tokens: Tensor,
        mask: Tensor | dict[str, Tensor] | None,
        positions: Tensor | None,
        before: Memory | None = None,
    ) -> Tensor:
        """A causal body's final hidden states, (batch, length, hidden).

        `tokens` and `positions` (batch, length); `mask` (batch, 1, length, length), or one for each kind of layer.
        Both None: plain causal attention, where what pads a row on its right is seen by nothing before it. `before`:
        what all rows begin with; then the mask has a column for each of its tokens, too.
        """
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if before is not None:
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(before):
                rows = (len(tokens), -1, -1, -1)
                cache.update(keys.expand(rows), values.expand(rows), layer)
            arguments |= {"past_key_values": cache, "use_cache": True}
        # All ones says "no padding" to models that would otherwise look for the pad token.
        arguments["attention_mask"] = torch.ones_like(tokens) if mask is None else mask
        if positions is not None:
            arguments["position_ids"] = positions
        return self._last_states(self.body, arguments)

    @property
    def tolerance(self) -> float:
        """How far two right answers may lie apart: by rounding, in half precision and by accelerators more of it."""
        return (1e-3 if self.device.type == "cpu" else 5e-3) if self.exact else 0.2

    @property
    def exact(self) -> bool:
        """Whether weights are in full precision."""
        return self.model.dtype == torch.float32 and not getattr(self.model, "is_quantized", False)

    def logits(self, states: Tensor) -> Tensor:
        """Logits of final hidden states: (rows, hidden) to (rows, vocabulary), in the model's dtype.

        An autocast around it does not hold here: bfloat16 would round log-probabilities to a few tenths where logits
        are far from 0, as GPT-2's are.
        """
        states = states.to(self.model.dtype)  # which autocast may have changed
        arguments: dict[str, Any] = {"input_ids": states.new_zeros((1, 1), dtype=torch.long), "use_cache": False}
        if self.is_encoder_decoder:
            arguments["decoder_input_ids"] = arguments.pop("input_ids")
            arguments["encoder_outputs"] = _EncoderOutput(last_hidden_state=states[None])
        with torch.autocast(states.device.type, enabled=False), _answering(self.body, states[None]):
            return self.model(**arguments).logits[0]

    def additive(self, allowed: Tensor | dict[str, Tensor]) -> Any:
        """A boolean 4D mask, or one for each kind of layer, in the form that the model's attention wants it."""
        if isinstance(allowed, dict):
            return {kind: self.additive(mask) for kind, mask in allowed.items()}
        if self.model.config._attn_implementation == "sdpa":
            return allowed
        blocked = torch.zeros(allowed.shape, dtype=self.model.dtype, device=allowed.device)
        return blocked.masked_fill_(~allowed, torch.finfo(self.model.dtype).min)


def _body_of(model: PreTrainedModel) -> nn.Module:
    """The decoder of a model, up to and with its final norm: a model of its own, whatever `get_decoder` names."""
    from transformers import PreTrainedModel

    named: Any = model.get_decoder()
    if isinstance(named, PreTrainedModel) and named is not model:
        return named
    return next((child for child in model.children() if isinstance(child, PreTrainedModel)), named)


def _keep_as_it_is(cache: Cache) -> None:
    """Have states stay what they are, as gradients need them, when the last tokens are read."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if hasattr(layer, "recurrent_states"):
            layer.activate_past_recording()  # of convolutions, which then write nothing over
            layer.update_recurrent_state = _keep_nothing


def _keep_nothing(states: Tensor, *_: Any, **__: Any) -> Tensor:
    return states


def _last_states(part: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    return part(**arguments).last_hidden_state


def _compiled_last_states(part: nn.Module, arguments: Mapping[str, Any]) -> Tensor:
    return _compiled()(part, arguments)


@functools.cache
def _compiled() -> Callable[[nn.Module, Mapping[str, Any]], Tensor]:
    # One function for all models of a process: policy, values and reference of one architecture share its programs.
    # There are several all the same: encoder and decoder, with and without gradients, a batch of one text.
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(_last_states, dynamic=True)


class _BodyOutput:
    """A body's output of any family: the hidden states, and None for whatever else a model passes on from it."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int) -> Tensor | None:
        return None if index else self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None


@dataclass
class _EncoderOutput(BaseModelOutput):
    """An encoder's output of any family, likewise."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _answering(body: nn.Module, states: Tensor) -> Iterator[None]:
    """Within this context `body` answers any call with the given states instead of computing."""
    hooked_forward = body.__dict__.get("forward")  # set on the instance where accelerate or a wrapper has hooked it

    def answer(*_: Any, **__: Any) -> _BodyOutput:
        return _BodyOutput(states)

    body.forward = answer
    try:
        yield
    finally:
        if hooked_forward is None:
            del body.forward
        else:
            body.forward = hooked_forward
