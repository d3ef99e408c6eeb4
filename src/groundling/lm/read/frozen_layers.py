"""Scoring with frozen lower layers: their states are cached, and texts that begin alike are computed once.

Under a LoRA adapter on the upper layers alone, the output of the layers below is the same in every update.
`FrozenLayers` caches it for each prompt with its candidates, and starts the trained layers from it. In these, texts
form a tree: linear layers, norms and MLPs see each distinct beginning once, for all texts of a pass, without padding.
Only attention lays the texts out side by side, as plain matrix products where they are short. Gradients of equal
beginnings add up in autograd. CPU, float32, causal models whose layers all attend to the whole text.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.errors import pass_out_of_memory
from groundling.lm.backbone import Backbone
from groundling.lm.load.loading import is_sharded
from groundling.lm.read.exactness import REFUSALS, words_of
from groundling.lm.read.packing import Layout, ScoringQuestion, batches
from groundling.lm.read.reader import RowStates
from groundling.lm.read.transcript import AttentionBy, layouts_of
from groundling.tokenization.chat import common_length

MAX_BYTES = 2**29
"""Memory of the cached states of one language model in one process: 512 MiB."""
_NODES_AT_ONCE = 1024
"""Positions of a pass: enough for fast products, and few enough that activations stay in the CPU's cache."""
_SHORT = 128
"""Up to this length plain products are faster than fused attention, and their scores take little memory."""
_ADAPTERS = ("lora_", "modules_to_save.")
"""In the names of weights that PEFT switches on and off."""

_Read = Callable[[Sequence[ScoringQuestion]], list[RowStates]]
_Key = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A prompt, and the tokens and depths of its candidates' rows."""


def num_frozen(body: nn.Module) -> int:
    """Number of layers before the first one with a trained weight or an adapter; 0 if embeddings are trained."""
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return 0
    embeddings: Any = body.get_input_embeddings()  # type: ignore[operator]
    if any(p.requires_grad for p in embeddings.parameters()):
        return 0
    return sum(1 for _ in itertools.takewhile(_is_frozen, layers))


def _is_frozen(layer: nn.Module) -> bool:
    return not any(p.requires_grad or any(part in name for part in _ADAPTERS) for name, p in layer.named_parameters())


@dataclass
class FrozenLayers:
    """Reads questions with one model whose lower layers are frozen.

    Args:
        backbone: Of the model.
        max_bytes: Memory for cached states; the entries that were not used for longest are evicted.
    """

    backbone: Backbone
    max_bytes: int = MAX_BYTES
    num_bytes: int = field(default=0, init=False)
    """Memory of the cached states."""
    _states: OrderedDict[_Key, Tensor] = field(default_factory=OrderedDict, init=False)
    _weights: tuple[tuple[int, int], ...] = field(default=(), init=False)
    """Address and version of each weight that the cached states were computed with."""
    _is_exact: dict[int, bool] = field(default_factory=dict, init=False)
    """Result of the trial, by the number of frozen layers."""

    def __getstate__(self) -> dict[str, Any]:
        """Copies of a model start with an empty cache."""
        return self.__dict__ | {"_states": OrderedDict(), "num_bytes": 0, "_weights": ()}

    def suits(self, reference: _Read) -> bool:
        """Return True if `answers` is exact for the model as it is now; tried once for each number of frozen layers.

        Args:
            reference: Another way to the same answers, with gradients.
        """
        backbone = self.backbone
        if backbone.is_encoder_decoder or backbone.device.type != "cpu" or not backbone.exact:
            return False
        if torch.is_inference_mode_enabled():  # no gradients could go through what it makes
            return False
        layers = backbone.layers
        if layers.others or layers.turns or layers.window or backbone.why_not_plain or is_sharded(backbone.model):
            return False
        frozen = num_frozen(backbone.body)
        if frozen and frozen not in self._is_exact:
            self._is_exact[frozen] = self._try(reference)
            self._forget()
        return self._is_exact.get(frozen, False)

    def answers(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Final hidden states of each question's rows."""
        frozen = num_frozen(self.backbone.body)
        self._check_weights(frozen)
        texts = [_Text.of(q, layout) for q, layout in zip(questions, layouts_of(questions), strict=True)]
        rows: dict[int, Tensor] = {}
        for indices in _passes(texts):
            together = [texts[index] for index in indices]
            tree = _Tree(together, self.backbone)
            with torch.no_grad():
                states = torch.cat([self._lower(text, frozen) for text in together])[tree.sources]
            hidden = self._run(tree, states, frozen, None)  # (nodes, hidden)
            picked = F.embedding(torch.cat(tree.rows), hidden).split([len(nodes) for nodes in tree.rows])
            rows.update(zip(indices, picked, strict=True))
        return [RowStates(rows[index], text.layout.targets) for index, text in enumerate(texts)]

    def _lower(self, text: _Text, frozen: int) -> Tensor:
        """Output of the frozen layers, (num_cells, hidden), from the cache if it is there.

        Each text is computed alone, so that no bit depends on what else was read: a resumed run computes the same.
        """
        if text.key in self._states:
            self._states.move_to_end(text.key)
            return self._states[text.key]
        tree = _Tree([text], self.backbone)
        tokens = torch.tensor(text.tokens, device=self.backbone.device)
        embeddings: Any = self.backbone.body.get_input_embeddings()  # type: ignore[operator]
        states = self._run(tree, embeddings(tokens), 0, frozen)
        self._states[text.key] = states
        self.num_bytes += states.nbytes
        while self.num_bytes > self.max_bytes:
            _, oldest = self._states.popitem(last=False)
            self.num_bytes -= oldest.nbytes
        return states

    def _run(self, tree: _Tree, states: Tensor, first: int, stop: int | None) -> Tensor:
        """Layers ``first`` to ``stop``, or to the end and the final norm: (nodes, hidden) to (nodes, hidden)."""
        body: Any = self.backbone.body
        output: list[Tensor] = []
        handle = None
        if stop is not None:
            handle = body.layers[stop - 1].register_forward_hook(
                lambda module, given, made: output.append(made[0] if isinstance(made, tuple) else made)
            )
        nothing = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=states.device)  # which bodies pass on as it is
        attention = AttentionBy(tree.attend)
        try:
            with _layers(body, first, stop), _last_at(tree.read if stop is None else None, body), attention:
                final = body(
                    inputs_embeds=states[None],
                    attention_mask=nothing,
                    position_ids=tree.positions[None],
                    use_cache=False,
                ).last_hidden_state
        finally:
            if handle is not None:
                handle.remove()
        return (output[0] if output else final)[0]

    def _check_weights(self, frozen: int) -> None:
        """Drop what was computed with other weights, or by another number of layers."""
        body: Any = self.backbone.body
        modules = [body.get_input_embeddings(), *body.layers[:frozen]]
        weights = tuple((p.data_ptr(), p._version) for module in modules for p in module.parameters())
        if weights != self._weights:
            self._forget()
            self._weights = weights

    def _forget(self) -> None:
        self._states.clear()
        self.num_bytes, self._weights = 0, ()

    def _try(self, reference: _Read) -> bool:
        """Compare states and the gradients of all trained weights with the reference, on a small example."""
        words = words_of(self.backbone, 24, 7, 5)
        candidates = [[words[0]], words[1:3], [words[1], *words[3:5]], []]
        prompts = [words[:9], words[:17], [*words[:5], *words[11:24]]]
        questions = [ScoringQuestion(prompt, candidates) for prompt in prompts]
        weights = [p for p in self.backbone.body.parameters() if p.requires_grad]
        found: list[list[Tensor]] = []
        try:
            for read in (self.answers, reference):
                with torch.enable_grad():
                    rows = torch.cat([answer.rows[answer.targets[0]] for answer in read(questions)])
                    loss = (rows * torch.linspace(-1, 1, rows.shape[1])).sum()
                    gradients = torch.autograd.grad(loss, weights) if weights else []
                found.append([rows.detach(), *gradients])
        except REFUSALS as error:  # a body that takes states or masks in a way of its own
            pass_out_of_memory(error)
            return False
        tolerance = self.backbone.tolerance
        return all(
            (one - other).abs().max() <= tolerance * (1 + other.abs().max()) for one, other in zip(*found, strict=True)
        )


@dataclass(frozen=True)
class _Text:
    """A prompt and the rows of its candidates, one cell for each."""

    key: _Key
    tokens: list[int]
    layout: Layout

    @classmethod
    def of(cls, question: ScoringQuestion, layout: Layout) -> _Text:
        own = layout.tokens[1:]
        key = tuple(question.prompt), tuple(own), tuple(layout.depths)
        return cls(key, [*question.prompt, *own], layout)

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.key[0]

    def __len__(self) -> int:
        return len(self.tokens)


def _passes(texts: Sequence[_Text]) -> Iterator[list[int]]:
    """Indices of texts that are read together, those that begin alike next to each other."""
    group: list[int] = []
    filled, before = 0, tuple[int, ...]()
    for index in sorted(range(len(texts)), key=lambda i: texts[i].prompt):
        new = len(texts[index]) - common_length(before, texts[index].prompt)
        if group and filled + new > _NODES_AT_ONCE:
            yield group
            group, filled, new = [], 0, len(texts[index])
        group.append(index)
        filled, before = filled + new, texts[index].prompt
    yield group


class _Tree:
    """Texts of one pass as nodes, one for each distinct beginning of a prompt and for each candidate's row.

    Attributes:
        positions: int64 (nodes,), of each in its text.
        sources: int64 (nodes,): a cell of the texts in a row that has the node's state.
        rows: Of each text the nodes of its rows, int64 (num_rows,), the prompt's last token first.
        read: int64, all of these: the nodes whose final states are needed.
    """

    def __init__(self, texts: Sequence[_Text], backbone: Backbone) -> None:
        config = backbone.model.config.get_text_config()
        self._num_keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        known: dict[tuple[int, int], int] = {}  # (node before, token) -> node
        positions: list[int] = []
        sources: list[int] = []
        self.rows: list[Tensor] = []
        cells: list[list[int]] = []
        first = 0
        for text in texts:
            nodes, node = [], -1
            for place, token in enumerate(text.prompt):
                node = known.setdefault((node, token), len(positions))
                if node == len(positions):
                    positions.append(place)
                    sources.append(first + place)
                nodes.append(node)
            last = len(text.prompt) - 1
            for row, depth in enumerate(text.layout.depths[1:], start=1):
                nodes.append(len(positions))
                positions.append(last + depth)
                sources.append(first + last + row)
            self.rows.append(torch.tensor(nodes[last:]))
            cells.append(nodes)
            first += len(text)
        self.positions, self.sources = torch.tensor(positions), torch.tensor(sources)
        self.read = torch.cat(self.rows).unique()
        self._texts, self._cells = texts, cells
        self._groups: list[_Group] = []
        self._pick = torch.zeros(0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Attention of one layer, (1, heads, nodes, size): each node to those of its text before it and itself."""
        heads, size = query.shape[1], query.shape[3]
        if not self._groups:
            self._lay_out(heads)
        every = key.shape[1] // self._num_keys  # bodies repeat a key for each query head that shares it
        queries = query[0].transpose(0, 1).reshape(-1, size)  # (nodes * heads, size)
        keys = key[0, ::every].transpose(0, 1).reshape(-1, size)  # (nodes * num_keys, size)
        values = value[0, ::every].transpose(0, 1).reshape(-1, value.shape[3])
        seen = [group.attend(queries, keys, values, scale) for group in self._groups]
        attended = torch.cat(seen).index_select(0, self._pick)
        return attended.view(-1, heads, value.shape[3]).transpose(0, 1)[None]

    def _lay_out(self, heads: int) -> None:
        """Texts of like length side by side, and where in them each node is."""
        pick = torch.zeros(len(self.positions), heads, dtype=torch.long)
        first = 0
        for indices in batches(list(map(len, self._cells)), 2**30, max_waste=0.15):
            texts, cells = [self._texts[i] for i in indices], [self._cells[i] for i in indices]
            group = _Group.of(texts, cells, heads, self._num_keys)
            places = first + torch.arange(group.queries.numel()).view(group.queries.shape)
            by_cell = places.permute(0, 3, 1, 2).flatten(2)  # (texts, length, heads)
            for row, nodes in enumerate(cells):
                pick[nodes] = by_cell[row, : len(nodes)]
            first += group.queries.numel()
            self._groups.append(group)
        self._pick = pick.flatten()


@dataclass(frozen=True)
class _Group:
    """Texts of like length side by side.

    `queries`: int64 (texts, num_keys, sharing, length): rows of (nodes * heads, size).
    `keys`: int64 (texts, num_keys, length): rows of (nodes * num_keys, size).
    `mask`: float32 (texts, 1, length, length), added to scores: -inf where a cell is not seen.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor

    @classmethod
    def of(cls, texts: Sequence[_Text], cells: Sequence[Sequence[int]], heads: int, num_keys: int) -> _Group:
        length = max(map(len, cells))
        nodes = torch.zeros(len(cells), length, dtype=torch.long)
        allowed = torch.ones(length, length, dtype=torch.bool).tril().repeat(len(cells), 1, 1)
        for row, (text, own) in enumerate(zip(texts, cells, strict=True)):
            nodes[row, : len(own)] = torch.tensor(own)
            start = len(text.prompt)
            allowed[row, start : len(own), start : len(own)] = text.layout.visible[1:, 1:]
        sharing = heads // num_keys
        head = torch.arange(heads).view(1, num_keys, sharing, 1)
        queries = nodes[:, None, None] * heads + head
        keys = nodes[:, None] * num_keys + torch.arange(num_keys)[:, None]
        mask = torch.zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
        return cls(queries, keys, mask[:, None])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """(texts * num_keys * sharing * length, size)."""
        texts, num_keys, sharing, length = self.queries.shape
        size = queries.shape[-1]
        query = queries.index_select(0, self.queries.flatten())
        key = keys.index_select(0, self.keys.flatten()).view(texts, num_keys, length, size)
        value = values.index_select(0, self.keys.flatten()).view(texts, num_keys, length, -1)
        if length > _SHORT:
            query = query.view(texts, num_keys * sharing, length, size)
            by = F.scaled_dot_product_attention
            seen = by(query, key, value, attn_mask=self.mask, scale=scale, enable_gqa=sharing > 1)
            return seen.reshape(-1, value.shape[-1])
        scaled = query * (size**-0.5 if scale is None else scale)
        scores = scaled.view(texts, num_keys, sharing * length, size) @ key.transpose(2, 3)
        seen_scores = scores.view(texts, -1, length, length) + self.mask
        shares = seen_scores.softmax(-1).view(texts, num_keys, sharing * length, length)
        return (shares @ value).view(-1, value.shape[-1])


@contextmanager
def _layers(body: Any, first: int, stop: int | None) -> Iterator[None]:
    """Within this context ``body`` has layers ``first`` to ``stop`` alone."""
    whole = body.layers
    body.layers = whole[first:stop]
    try:
        yield
    finally:
        body.layers = whole


@contextmanager
def _last_at(nodes: Tensor | None, body: Any) -> Iterator[None]:
    """Within this context the last layer computes queries, attention's output and MLP at ``nodes`` alone.

    Elsewhere they are 0: of the last layer's other nodes nothing but keys and values is needed. None: everywhere.
    """
    if nodes is None or not len(body.layers):
        yield
        return
    last = body.layers[-1]
    parts: list[Any] = [last.self_attn.q_proj, last.self_attn.o_proj, last.mlp]
    for part in parts:
        part.forward = partial(_at, part.forward, nodes)
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _at(forward: Callable[[Tensor], Tensor], nodes: Tensor, states: Tensor) -> Tensor:
    """``forward`` of (1, nodes, inputs) at some nodes, and 0 at the others."""
    made = forward(states.index_select(1, nodes))
    return made.new_zeros(1, states.shape[1], made.shape[2]).index_copy(1, nodes, made)
