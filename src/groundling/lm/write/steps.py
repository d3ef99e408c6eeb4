"""Writing token by token: what a model remembers of its texts, and the step that adds a token to each.

Transformers' own loop spends most of a small model's time in Python: it builds masks, grows its cache and goes through
some twenty calls per layer for each token. Here keys and values lie in tensors made once for the whole text, and the
step is traced once with `torch.jit.trace`, for any batch and length, after which no Python runs in it. It calls the
model's own modules and holds its own weights, so nothing is written here for any family; on a first small example the
result is held against the model's plain forward, and models for which it differs are written with otherwise.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from groundling.errors import pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.kernels import FastKernels
from groundling.lm.read.exactness import REFUSALS, plain_logits
from groundling.lm.read.packing import batches, padded
from groundling.lm.read.relative_attention import reads_in_blocks

_AT_ONCE, _AT_ONCE_ON_CPU = (8192, 0.5), (384, 0.3)
"""How many tokens of prompts are read at once, and how much padding may be added, as a share of the rest. What a layer
makes of few tokens stays in a CPU's cache: a tenth of the time for 4 layers of width 256."""
_LEAST_MEMORY = 400
"""Numbers of a head's keys in a text, and of its values: of fewer PyTorch takes products by a plain loop on CPUs, which
for 320 is three times as slow."""


@dataclass
class Texts:
    """What a model remembers of a batch of texts.

    Rows are texts; prompts lie from slot 0 on, what is written to all of them from slot ``slot`` on, and slots between
    are hidden by ``mask``: positions, not places, tell a model the order.
    """

    logits: Tensor
    """(rows, vocabulary): of the next token."""
    slot: int
    """Where the next token goes."""
    slots: Tensor
    """(slots,) int64: their numbers, on the device, to which none has then to be copied for a token."""
    positions: Tensor
    """(rows, 1) int64: its position in each text."""
    mask: Tensor
    """(rows, 1, 1, slots), added to attention scores: 0 or the dtype's least number."""
    cross: tuple[Tensor, Tensor]
    """Of an encoder-decoder: the encoder's mask like ``mask``, and its states (rows, length, hidden)."""
    memory: list[Tensor]
    """Of each layer keys and values, (rows, heads, slots, size), and those of its cross-attention, likewise."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self.logits, self.positions, self.mask = self.logits[rows], self.positions[rows], self.mask[rows]
        self.memory = [tensor[rows] for tensor in self.memory]
        mask, states = self.cross
        self.cross = (mask[rows], states[rows])


class Stepper:
    """Reads prompts with one model, then adds token after token to them. Without gradients."""

    def __init__(self, backbone: Backbone, start_token: int) -> None:
        self.backbone = backbone
        self.start_token = start_token
        self._begin = _Begin(backbone, start_token)
        self._step = _Step(backbone)
        self._traced: _Traced | None = None
        self._checked: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the trace, which is made anew by copies: it holds the weights of the original."""
        return self.__dict__ | {"_traced": None, "_checked": None}

    @property
    def exact(self) -> bool:
        """Whether this is the same as the model's plain forward; tried once, on a small example."""
        if self._checked is None:
            # Not in the half precision of an autocast around the first call: its rounding would look like an error.
            with torch.autocast(self.backbone.device.type, enabled=False):
                self._checked = self._is_exact()
        return self._checked

    def begin(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Texts:
        """Read prompts (token ids, none empty), with room for so many tokens after them. Equal ones are read once."""
        encodes = self.backbone.is_encoder_decoder
        lengths = torch.tensor([1 if encodes else len(prompt) for prompt in prompts])
        longest = max(map(len, prompts))
        texts = self._empty(lengths, new_tokens, longest if encodes else 0)
        for group, rows, place in self._distinct(prompts):
            tokens, mask = padded(group, self.backbone.device)
            last = torch.tensor([0 if encodes else len(prompt) - 1 for prompt in group], device=tokens.device)
            if self._traced and not (encodes and reads_in_blocks(self.backbone.model.get_encoder(), tokens)):
                logits, states, *memory = self._traced.begin(tokens, mask, last)
            else:
                with FastKernels():
                    logits, states, *memory = self._begin(tokens, mask, last)
            if encodes:
                texts.cross[0][rows, 0, 0, : mask.shape[1]] = _additive(mask, states.dtype)[place]
            self._put(texts, rows, place, logits, states, memory)
        return texts

    def add(self, texts: Texts, tokens: Tensor) -> None:
        """Append ``tokens`` (rows,) to the texts and predict what comes next."""
        texts.mask[..., texts.slot] = 0
        step = self._traced.step if self._traced else self._step
        slot = texts.slots[texts.slot : texts.slot + 1]
        texts.logits = step(tokens[:, None], texts.positions, slot, texts.mask, *texts.cross, *texts.memory)
        texts.slot += 1
        texts.positions = texts.positions + 1

    def _empty(self, lengths: Tensor, new_tokens: int, encoded: int) -> Texts:
        """Texts whose memory is still to come; of ``encoded`` tokens each at most where there is an encoder."""
        device, dtype = self.backbone.device, self.backbone.model.dtype
        slot = int(lengths.max())
        visible = torch.arange(slot + new_tokens - 1) < lengths[:, None]  # (rows, slots)
        hidden = torch.zeros(len(lengths), 1, 1, encoded, dtype=dtype, device=device)
        return Texts(
            logits=torch.zeros(0),
            slot=slot,
            slots=torch.arange(slot + new_tokens, device=device),
            positions=lengths[:, None].to(device),
            mask=_additive(visible, dtype)[:, None, None].to(device),
            cross=(hidden.fill_(torch.finfo(dtype).min), torch.zeros(0, device=device)),
            memory=[],
        )

    def _distinct(self, prompts: Sequence[Sequence[int]]) -> list[tuple[list[Sequence[int]], Tensor, Tensor]]:
        """Batches of distinct prompts of like length; of each the rows that have them, and which one each row has."""
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

    def _put(
        self, texts: Texts, rows: Tensor, place: Tensor, logits: Tensor, states: Tensor, memory: Sequence[Tensor]
    ) -> None:
        """Lay down what was read of distinct prompts for each row that has them."""
        if not texts.memory:
            self._make_room(texts, logits, states, memory)
        for kept, read in zip(texts.memory, memory, strict=True):
            kept[:, :, : read.shape[2]].index_copy_(0, rows, read.index_select(0, place))
        texts.logits.index_copy_(0, rows, logits.index_select(0, place))
        if self.backbone.is_encoder_decoder:
            texts.cross[1][:, : states.shape[1]].index_copy_(0, rows, states.index_select(0, place))

    def _make_room(self, texts: Texts, logits: Tensor, states: Tensor, memory: Sequence[Tensor]) -> None:
        """Make the tensors of `Texts`, shaped after what was read first."""
        encodes, least = self.backbone.is_encoder_decoder, -(-_LEAST_MEMORY // memory[0].shape[3])
        texts.mask = _widened(texts.mask, least)
        hidden = _widened(texts.cross[0], least) if encodes else texts.cross[0]
        num_rows, slots, encoded = len(texts.mask), texts.mask.shape[-1], hidden.shape[-1]
        rooms = [slots, slots, encoded, encoded] if encodes else [slots, slots]
        texts.logits = logits.new_zeros(num_rows, logits.shape[-1])
        texts.cross = (hidden, states.new_zeros(num_rows, encoded, states.shape[-1]))
        texts.memory = [
            tensor.new_zeros(num_rows, tensor.shape[1], room, tensor.shape[3])
            for tensor, room in zip(memory, itertools.cycle(rooms))
        ]

    @torch.no_grad()
    def _is_exact(self) -> bool:
        """Try on two small batches of other sizes, after tracing on the first."""
        vocabulary = self.backbone.model.config.get_text_config().vocab_size
        words = [(7 * index + 5) % vocabulary for index in range(16)]
        small = [words[:3], words[2:9], words[5:7]]
        large = [*small, words[4:12], words[1:5]]
        tolerance = self.backbone.tolerance
        try:
            self._trace(small)
            for traced in (self._traced, None) if self._traced else (None,):
                self._traced = traced
                computed = [self._try(prompts, words) for prompts in (small, large)]
                expected = [self._plain(prompts, words) for prompts in (small, large)]
                if all(
                    torch.allclose(a, b, atol=tolerance, rtol=tolerance)
                    for a, b in zip(computed, expected, strict=True)
                ):
                    return True
        except REFUSALS as error:  # a body that remembers, or takes masks and positions, in its own way
            pass_out_of_memory(error)  # the same may be tried again with less
        self._traced = None
        return False

    def _trace(self, prompts: Sequence[Sequence[int]]) -> None:
        if self.backbone.device.type != "cpu":
            return  # not tried
        texts = self.begin(prompts, 4)
        tokens, mask = padded(prompts, self.backbone.device)
        last = mask.sum(1) - 1 if not self.backbone.is_encoder_decoder else torch.zeros_like(mask[:, 0])
        slot = torch.tensor([texts.slot])
        example = (tokens[:, :1], texts.positions, slot, texts.mask, *texts.cross, *texts.memory)
        with warnings.catch_warnings(), FastKernels():
            warnings.simplefilter("ignore")  # of tensors turned into numbers, which the example tells apart
            try:
                model = self.backbone.model
                begin = torch.jit.trace(_Traceable(self._begin, model), (tokens, mask, last), check_trace=False)
                step = torch.jit.trace(_Traceable(self._step, model), example, check_trace=False)
            except REFUSALS as error:
                pass_out_of_memory(error)
                return
        self._traced = _Traced(begin, step)

    def _try(self, prompts: Sequence[Sequence[int]], words: list[int]) -> Tensor:
        """(rows, vocabulary): logits after three more tokens."""
        texts = self.begin(prompts, 6)
        for step in range(3):
            tokens = torch.tensor(words[step : step + len(prompts)], device=self.backbone.device)
            self.add(texts, tokens)
        return texts.logits.float()

    def _plain(self, prompts: Sequence[Sequence[int]], words: list[int]) -> Tensor:
        """The same from the model's own forward, text by text."""
        return torch.stack(
            [
                plain_logits(self.backbone, self.start_token, prompt, [words[step + row] for step in range(3)])[
                    -1
                ].float()
                for row, prompt in enumerate(prompts)
            ]
        )


class _Slots(CacheLayerMixin):
    """A layer's keys and values in tensors made beforehand; what comes is put into one slot."""

    def __init__(self, keys: Tensor, values: Tensor, slot: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.slot = keys, values, slot
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Put (rows, heads, 1, size) into the slot; give back all slots, which the mask tells apart."""
        assert self.keys is not None and self.values is not None
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return self.slot  # type: ignore[return-value]  # a tensor, as of Transformers' static caches

    def get_max_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    get_max_cache_shape = get_max_length  # its name up to Transformers 5.20


class _First(DynamicLayer):
    """A layer that is read into only once, and so keeps what comes as it is instead of a copy."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


def _empty_cache() -> Cache:
    return Cache(layer_class_to_replicate=_First)


class _Traced(NamedTuple):
    begin: Any
    step: Any


class _Traceable(nn.Module):
    """A call with all weights of its model side by side, so that a trace holds the weights themselves.

    Of a model's modules PyTorch would make one of its own each, which takes several times as long as the trace.
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


class _Begin:
    """Prompts read."""

    def __init__(self, backbone: Backbone, start_token: int) -> None:
        self.start_token = start_token
        self._backbone = backbone

    def __call__(self, tokens: Tensor, mask: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        """Logits (rows, vocabulary) after position ``last`` (rows,), the encoder's states, and a `Texts` memory.

        ``tokens`` and 0/1 ``mask`` (rows, length), padded on the right.
        """
        backbone = self._backbone
        if backbone.is_encoder_decoder:
            states = backbone.encode(tokens, mask)
            past: Any = EncoderDecoderCache(_empty_cache(), _empty_cache())
            more = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
            tokens = torch.full_like(tokens[:, :1], self.start_token)
        else:
            # What pads a row on its right is seen by nothing before it: plain causal attention is right.
            states, past = torch.zeros(0, device=tokens.device), _empty_cache()
            more = {"attention_mask": torch.ones_like(tokens)}
        hidden = backbone.body(input_ids=tokens, past_key_values=past, use_cache=True, **more).last_hidden_state
        caches = (
            [past.self_attention_cache, past.cross_attention_cache]
            if more.get("encoder_hidden_states") is not None
            else [past]
        )
        memory = [
            t
            for layer in zip(*(cache.layers for cache in caches), strict=True)
            for part in layer
            for t in (part.keys, part.values)
        ]
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        return backbone.logits(hidden[rows, last]), states, *memory


class _Step:
    """One token read by every text."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        slot: Tensor,
        mask: Tensor,
        cross_mask: Tensor,
        states: Tensor,
        *memory: Tensor,
    ) -> Tensor:
        """Logits (rows, vocabulary); arguments as in `Texts`, slot (1,) int64. Writes into the memory."""
        backbone = self._backbone
        layers: list[Any] = [
            _Slots(keys, values, slot) for keys, values in zip(memory[::2], memory[1::2], strict=True)
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


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where something is visible, the dtype's least number where not."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible.bool(), torch.finfo(dtype).min
    )


def _widened(mask: Tensor, least: int) -> Tensor:
    """An additive mask with at least so many slots, of which the new ones are hidden."""
    return F.pad(mask, (0, max(0, least - mask.shape[-1])), value=torch.finfo(mask.dtype).min)
