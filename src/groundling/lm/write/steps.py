"""Decode token by token with a traced step and a static key-value cache.

For small models, Transformers' own loop spends most of its time in Python: it builds masks, grows its cache and makes
about twenty calls per layer and token. Here, keys and values are stored in tensors allocated once for the whole text,
and the step is traced once with `torch.jit.trace` for any batch and length, after which it runs without Python. It
calls the model's own modules with their weights, so no code here is specific to a model family. An exactness check
compares it with the model's own forward pass on a small example; models that fail it use Transformers' loop.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from groundling.errors import pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.kernels import FastKernels, reads_in_blocks
from groundling.lm.read.batching import batches, padded
from groundling.lm.read.exactness import REFUSALS, agree, example_tokens, plain_logits

# Maximum number of prompt tokens per batch, and padding as a share of them. Small batches keep their activations in a
# CPU's cache, which saves a tenth of the time for 4 layers of width 256.
_AT_ONCE, _AT_ONCE_ON_CPU = (8192, 0.5), (384, 0.3)
# Minimum number of elements in a head's keys or values for a text. On CPUs, PyTorch multiplies smaller matrices in a
# plain loop, which takes three times as long for 320 elements.
_LEAST_MEMORY = 400


@dataclass
class Texts:
    """A batch of texts with their key-value cache.

    Each row is a text. Prompts start at slot 0, and the generated tokens of all texts start after the longest prompt;
    ``mask`` hides the slots in between. The order of the tokens is determined by their positions, not by their slots.
    """

    logits: Tensor  # (rows, vocabulary), logits of the next token
    slot: int  # slot of the next token
    slots: Tensor  # int64 (slots,), the slot numbers, on the device
    positions: Tensor  # int64 (rows, 1), position of the next token in each text
    mask: Tensor  # (rows, 1, 1, slots), added to attention scores: 0 or the dtype's lowest number
    cross: tuple[Tensor, Tensor]  # for encoder-decoders: encoder mask (like ``mask``), states (rows, length, hidden)
    memory: list[Tensor]  # keys and values of each layer (rows, heads, slots, size), and of its cross-attention

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.logits, self.positions, self.mask = self.logits[rows], self.positions[rows], self.mask[rows]
        self.memory = [tensor[rows] for tensor in self.memory]
        mask, states = self.cross
        self.cross = (mask[rows], states[rows])


class Stepper:
    """Reads prompts with one model, then appends one token at a time, without gradients."""

    def __init__(self, backbone: Backbone, start_token: int) -> None:
        self.backbone = backbone
        self.start_token = start_token
        self._traced: tuple[Any, Any] | None = None  # `_read_prompts` and `_read_token`
        self._checked: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Omit the trace, which contains the original's weights; a copy creates a new trace."""
        return self.__dict__ | {"_traced": None, "_checked": None}

    @property
    def exact(self) -> bool:
        """True if the steps agree with the model's own forward pass; checked once."""
        if self._checked is None:
            self._checked = self._is_exact()
        return self._checked

    def begin(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Texts:
        """Read nonempty prompts (token ids), leaving room for ``new_tokens``; identical prompts are read once."""
        encodes, device = self.backbone.is_encoder_decoder, self.backbone.device
        texts: Texts | None = None
        for group, rows, place in self._distinct(prompts):
            tokens, mask = padded(group, device)
            last = torch.tensor([0 if encodes else len(prompt) - 1 for prompt in group], device=device)
            if self._traced and not (encodes and reads_in_blocks(self.backbone.model.get_encoder(), tokens)):
                logits, states, *memory = self._traced[0](tokens, mask, last)
            else:
                with FastKernels():
                    logits, states, *memory = self._read_prompts(tokens, mask, last)
            if texts is None:
                texts = self._allocated(prompts, new_tokens, logits, states, memory)
            texts.logits.index_copy_(0, rows, logits.index_select(0, place))
            for kept, read in zip(texts.memory, memory, strict=True):
                kept[:, :, : read.shape[2]].index_copy_(0, rows, read.index_select(0, place))
            if encodes:
                texts.cross[0][rows, 0, 0, : mask.shape[1]] = _additive(mask, states.dtype)[place]
                texts.cross[1][:, : states.shape[1]].index_copy_(0, rows, states.index_select(0, place))
        assert texts is not None, "no prompts"
        return texts

    def add(self, texts: Texts, tokens: Tensor) -> None:
        """Append ``tokens`` (rows,) to the texts and predict the next ones."""
        texts.mask[..., texts.slot] = 0
        step = self._traced[1] if self._traced else self._read_token
        slot = texts.slots[texts.slot : texts.slot + 1]
        texts.logits = step(tokens[:, None], texts.positions, slot, texts.mask, *texts.cross, *texts.memory)
        texts.slot += 1
        texts.positions = texts.positions + 1

    def _read_prompts(self, tokens: Tensor, mask: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        """Return logits (rows, vocabulary) after position ``last`` (rows,), encoder states, and `Texts.memory`."""
        # Prompts (rows, length) are padded on the right, where ``mask`` is 0.
        backbone = self.backbone
        if backbone.is_encoder_decoder:
            states = backbone.encode(tokens, mask)
            past: Any = EncoderDecoderCache(_first_cache(), _first_cache())
            more = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
            tokens = torch.full_like(tokens[:, :1], self.start_token)
        else:
            # No token attends to padding on its right, so causal attention is exact.
            states, past = torch.zeros(0, device=tokens.device), _first_cache()
            more = {"attention_mask": torch.ones_like(tokens)}
        output = backbone.body(input_ids=tokens, past_key_values=past, use_cache=True, **more)
        hidden = output.last_hidden_state
        encodes = backbone.is_encoder_decoder
        caches = [past.self_attention_cache, past.cross_attention_cache] if encodes else [past]
        memory = [
            tensor
            for layer in zip(*(cache.layers for cache in caches), strict=True)
            for part in layer
            for tensor in (part.keys, part.values)
        ]
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        return backbone.logits(hidden[rows, last]), states, *memory

    def _read_token(
        self,
        tokens: Tensor,
        positions: Tensor,
        slot: Tensor,
        mask: Tensor,
        cross_mask: Tensor,
        states: Tensor,
        *memory: Tensor,
    ) -> Tensor:
        """Read one token of each text into ``slot``, int64 (1,), of the cache; return logits (rows, vocabulary)."""
        backbone = self.backbone
        layers: list[Any] = [
            _StaticLayer(keys, values, slot) for keys, values in zip(memory[::2], memory[1::2], strict=True)
        ]
        if backbone.is_encoder_decoder:
            past: Any = EncoderDecoderCache(Cache(layers=layers[::2]), Cache(layers=layers[1::2]))
            past.is_updated = dict.fromkeys(range(len(layers) // 2), True)
            more = {"encoder_hidden_states": states, "encoder_attention_mask": cross_mask}
        else:
            past, more = Cache(layers=layers), {"position_ids": positions}
        hidden = backbone.body(
            input_ids=tokens, attention_mask=mask, past_key_values=past, use_cache=True, **more
        ).last_hidden_state
        return backbone.logits(hidden[:, 0])

    def _allocated(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        logits: Tensor,
        states: Tensor,
        memory: Sequence[Tensor],
    ) -> Texts:
        """Allocate texts for all prompts, with tensor shapes taken from the first batch read."""
        encodes, device, dtype = self.backbone.is_encoder_decoder, self.backbone.device, self.backbone.model.dtype
        lengths = torch.tensor([1 if encodes else len(prompt) for prompt in prompts])
        slot, least = int(lengths.max()), -(-_LEAST_MEMORY // memory[0].shape[3])
        slots, encoded = max(slot + new_tokens - 1, least), max(*map(len, prompts), least) if encodes else 0
        rooms = [slots, slots, encoded, encoded] if encodes else [slots, slots]
        hidden = _additive(torch.zeros(len(prompts), encoded, device=device), dtype)[:, None, None]
        return Texts(
            logits=logits.new_zeros(len(prompts), logits.shape[-1]),
            slot=slot,
            slots=torch.arange(slot + new_tokens, device=device),
            positions=lengths[:, None].to(device),
            mask=_additive(torch.arange(slots) < lengths[:, None], dtype)[:, None, None].to(device),
            cross=(hidden, states.new_zeros(len(prompts), encoded, states.shape[-1])),
            memory=[
                tensor.new_zeros(len(prompts), tensor.shape[1], room, tensor.shape[3])
                for tensor, room in zip(memory, itertools.cycle(rooms))
            ],
        )

    def _distinct(self, prompts: Sequence[Sequence[int]]) -> list[tuple[list[Sequence[int]], Tensor, Tensor]]:
        """Return batches of distinct prompts, each with the rows that use them and each row's index in the batch."""
        places: dict[tuple[int, ...], list[int]] = {}
        for row, prompt in enumerate(prompts):
            places.setdefault(tuple(prompt), []).append(row)
        distinct = list(places)
        groups = []
        at_once = _AT_ONCE_ON_CPU if self.backbone.device.type == "cpu" else _AT_ONCE
        for batch in batches([len(prompt) for prompt in distinct], *at_once):
            group: list[Sequence[int]] = [distinct[index] for index in batch]
            rows = [(row, place) for place, index in enumerate(batch) for row in places[distinct[index]]]
            where = torch.tensor(rows, device=self.backbone.device).T  # (2, number of rows)
            groups.append((group, where[0], where[1]))
        return groups

    @torch.no_grad()
    def _is_exact(self) -> bool:
        """Compare steps, traced if possible, with the model's own forward pass on two small batches."""
        tokens = example_tokens(self.backbone, 16)
        small = [tokens[:3], tokens[2:9], tokens[5:7]]
        examples = [small, [*small, tokens[4:12], tokens[1:5]]]
        with torch.autocast(self.backbone.device.type, enabled=False):
            self._traced = self._trace(small)
        for traced in (self._traced, None) if self._traced else (None,):
            self._traced = traced
            if agree(
                self.backbone,
                lambda: [self._stepped(prompts, tokens) for prompts in examples],
                lambda: [self._plain(prompts, tokens) for prompts in examples],
            ):
                return True
        return False

    def _trace(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any] | None:
        """On CPUs, trace `_read_prompts` and `_read_token`; return None if that fails."""
        if self.backbone.device.type != "cpu":
            return None
        model = self.backbone.model
        with warnings.catch_warnings(), FastKernels():
            warnings.simplefilter("ignore")  # about tensors converted to numbers; `exact` would detect errors
            try:
                texts = self.begin(prompts, 4)
                tokens, mask = padded(prompts, self.backbone.device)
                encodes = self.backbone.is_encoder_decoder
                last = torch.zeros_like(mask[:, 0]) if encodes else mask.sum(1) - 1
                slot = torch.tensor([texts.slot])
                example = (tokens[:, :1], texts.positions, slot, texts.mask, *texts.cross, *texts.memory)
                begin = _Traceable(self._read_prompts, model), (tokens, mask, last)
                step = _Traceable(self._read_token, model), example
                return torch.jit.trace(*begin, check_trace=False), torch.jit.trace(*step, check_trace=False)
            except REFUSALS as error:  # from models with a different kind of cache, masks or positions
                pass_out_of_memory(error)
                return None

    def _stepped(self, prompts: Sequence[Sequence[int]], tokens: list[int]) -> Tensor:
        """Return logits (rows, vocabulary) after three more tokens."""
        texts = self.begin(prompts, 6)
        for step in range(3):
            self.add(texts, torch.tensor(tokens[step : step + len(prompts)], device=self.backbone.device))
        return texts.logits.float()

    def _plain(self, prompts: Sequence[Sequence[int]], tokens: list[int]) -> Tensor:
        """Return the same logits from the model's own forward pass, one text at a time."""
        return torch.stack(
            [
                plain_logits(self.backbone, self.start_token, prompt, tokens[row : row + 3])[-1].float()
                for row, prompt in enumerate(prompts)
            ]
        )


class _StaticLayer(CacheLayerMixin):
    """A layer's keys and values in static tensors; new ones are written into one slot."""

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.slot = keys, values, slot
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the tensors already exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write states (rows, heads, 1, size) into the slot; return all slots, including masked empty ones."""
        assert self.keys is not None and self.values is not None
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        return self.slot  # type: ignore[return-value]  # a tensor, as in Transformers' static caches

    def get_max_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    get_max_cache_shape = get_max_length  # its name up to Transformers 5.20


class _FirstLayer(DynamicLayer):
    """A cache layer that is filled once; it keeps keys and values in their own dtypes, without copying them."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


def _first_cache() -> Cache:
    return Cache(layer_class_to_replicate=_FirstLayer)


class _Traceable(nn.Module):
    """Wraps a function in a module whose parameters are the model's weights, so that a trace shares these weights.

    If the model were a submodule, PyTorch would copy its module tree, which takes several times as long as tracing.
    """

    def __init__(self, call: Callable[..., Any], model: nn.Module) -> None:
        super().__init__()
        self._call = call
        for number, weight in enumerate(model.parameters()):
            self.register_parameter(f"weight{number}", weight)
        for number, buffer in enumerate(model.buffers()):
            self.register_buffer(f"buffer{number}", buffer)

    def forward(self, *inputs: Tensor) -> Any:
        return self._call(*inputs)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a slot is visible, and the dtype's lowest number elsewhere."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible.bool(), torch.finfo(dtype).min)
