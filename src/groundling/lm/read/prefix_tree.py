"""Read texts with common prefixes as one tree of tokens.

Linear layers, norms and MLPs compute each distinct prefix once, for all texts of a pass and without padding. Only
attention distinguishes the texts: for each block of queries, it gathers a text's keys and values from the tree, and
blocks of similar size share a call to PyTorch's fused attention. A `KeyValueMemory` keeps keys and values for texts
that continue earlier ones (compare RadixAttention in SGLang, arXiv 2312.07104). This works for causal models in which
each layer attends to the whole text with one call to fused attention.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from groundling.lm.read.batching import Layout, ScoringQuestion, Tokens, batches, layouts_of

_MAX_QUERIES = 512  # Maximum number of queries per block, so that the masks of long texts do not grow quadratically
_MAX_WASTE = 0.15  # Maximum share of padding in the keys of blocks that share a call


class Branch(NamedTuple):
    """Token rows of the candidates that continue the first ``length`` tokens of a text."""

    length: int
    layout: Layout


@dataclass(frozen=True)
class Text:
    """A prompt, its candidates, and the candidates of prompts that are prefixes of it."""

    trunk: tuple[int, ...]
    branches: list[Branch]


def chains(prompts: Sequence[Tokens]) -> list[list[int]]:
    """Group the indices of prompts so that each prompt extends the previous one; equal prompts share a group."""
    keys = [tuple(prompt) for prompt in prompts]
    groups: list[list[int]] = []
    # In sorted order, a text is followed by those that extend it.
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        before = keys[groups[-1][-1]] if groups else None
        if before is not None and keys[index][: len(before)] == before:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def joined(questions: Sequence[ScoringQuestion]) -> list[tuple[list[int], Text]]:
    """Merge questions into as few texts as possible; return each with its questions' indices, in branch order."""
    layouts = layouts_of(questions)
    groups = chains([question.prompt for question in questions])
    return [
        (
            group,
            Text(tuple(questions[group[-1]].prompt), [Branch(len(questions[i].prompt), layouts[i]) for i in group]),
        )
        for group in groups
    ]


@dataclass(eq=False)
class KeyValueMemory:
    """Keys and values of the latest prompts (as many as in the largest call), indexed by prefix-tree entry."""

    children: dict[tuple[int, int], int] = field(default_factory=dict)  # (entry, next token) -> entry; -1 is the root
    _layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # each (key heads, capacity, size)
    _paths: list[list[int]] = field(default_factory=list)  # entries of each kept prompt, starting with the last call's
    _free: list[int] = field(default_factory=list)
    _size: int = 0
    _most: int = 0
    num_bytes: int = 0

    def allocate(self) -> int:
        if self._free:
            return self._free.pop()
        self._size += 1
        return self._size - 1

    def write(self, layer: int, entries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values (key heads, new, size) of entries, and return those of all entries."""
        kept = self._layers.get(layer)
        if kept is None or kept[0].shape[1] < self._size:
            room = self._size if kept is None else max(self._size, kept[0].shape[1] * 3 // 2)
            grown = [new.new_zeros(new.shape[0], room, new.shape[2]) for new in (keys, values)]
            for one, before in zip(grown, kept or (), strict=False):
                one[:, : before.shape[1]] = before
            self.num_bytes += sum(one.nbytes for one in grown) - sum(one.nbytes for one in kept or ())
            kept = self._layers[layer] = grown[0], grown[1]
        kept[0].index_copy_(1, entries, keys)
        kept[1].index_copy_(1, entries, values)
        return kept

    def keep(self, paths: Sequence[list[int]]) -> None:
        """Keep the prompts of a call, and older ones while there is room; free all other entries."""
        used = set(itertools.chain.from_iterable(paths))
        self._most = max(self._most, len(paths))
        older = [path for path in self._paths if path[-1] not in used]
        self._paths = [*paths, *older][: self._most]
        used = set(itertools.chain.from_iterable(self._paths))
        self.children = {key: entry for key, entry in self.children.items() if entry in used}
        self._free = [entry for entry in range(self._size) if entry not in used]


class _Block(NamedTuple):
    """Queries (nodes of a pass), keys (entries), and their attention mask, bool (queries, keys)."""

    queries: list[int]
    keys: list[int]
    allowed: Tensor


class PrefixTree:
    """The tree of one pass; its nodes are the tokens to compute.

    `tokens` and `positions` describe each node. `rows` lists, for each text and branch, the nodes of its tokens,
    starting with the root; `paths` lists the entries of each text's trunk. ``memory`` stores the keys and values of
    entries that are not computed again; without it, the nodes are the entries.
    """

    def __init__(self, num_keys: int, memory: KeyValueMemory | None = None) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.rows: list[list[list[int]]] = []
        self.paths: list[list[int]] = []
        self._num_keys, self._memory = num_keys, memory
        self._children = {} if memory is None else memory.children
        self._entries: list[int] = []  # entry of each node
        self._nodes: dict[int, int] = {}  # entry -> node
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, text: Text) -> None:
        """Add a text's new tokens, and the last tokens of its prompts, whose states are needed."""
        path: list[int] = []
        queries: list[int] = []
        for place, token in enumerate(text.trunk):
            before = path[-1] if path else -1
            entry = self._children.get((before, token))
            if entry is None:
                entry = self._children[before, token] = self._new_entry()
                self._compute(entry, token, place)
                queries.append(place)
            path.append(entry)
        for place in sorted({branch.length - 1 for branch in text.branches}):
            if path[place] not in self._nodes:  # its keys and values are kept, but not its state
                self._compute(path[place], text.trunk[place], place)
                queries.append(place)
        rows = []
        for length, layout in text.branches:
            cells = zip(layout.tokens[1:], layout.depths[1:], strict=True)
            new = [self._compute(self._new_entry(), token, length - 1 + depth) for token, depth in cells]
            rows.append([self._nodes[path[length - 1]], *new])
        self.rows.append(rows)
        self.paths.append(path)
        self._split(text, path, sorted(queries), rows)

    def _new_entry(self) -> int:
        return len(self) if self._memory is None else self._memory.allocate()

    def _compute(self, entry: int, token: int, position: int) -> int:
        node = self._nodes[entry] = len(self)
        self.tokens.append(token)
        self.positions.append(position)
        self._entries.append(entry)
        return node

    def _split(self, text: Text, path: list[int], queries: list[int], rows: list[list[int]]) -> None:
        """Split a text's queries into blocks for its trunk and its branches, or into one block if they are few."""
        branches = [(branch, nodes[1:]) for branch, nodes in zip(text.branches, rows, strict=True) if nodes[1:]]
        while queries or branches:
            trunk, queries = queries[:_MAX_QUERIES], queries[_MAX_QUERIES:]
            taken, room = [], _MAX_QUERIES - len(trunk)
            while branches and not queries and (not trunk or len(branches[0][1]) <= room):
                taken.append(branches.pop(0))
                room -= len(taken[-1][1])
                if room <= 0:
                    break
            self._blocks.append(self._block(path, trunk, taken))

    def _block(self, path: list[int], trunk: list[int], branches: list[tuple[Branch, list[int]]]) -> _Block:
        ends = [place + 1 for place in trunk] + [b.length for b, nodes in branches for _ in nodes]
        seen = max(ends)
        visible = [branch.layout.visible[1:, 1:] for branch, _ in branches]
        among = torch.block_diag(torch.zeros(len(trunk), 0), *visible).bool()
        allowed = torch.cat([torch.arange(seen) < torch.tensor(ends)[:, None], among], dim=1)
        nodes = [node for _, its_nodes in branches for node in its_nodes]
        queries = [self._nodes[path[place]] for place in trunk] + nodes
        return _Block(queries, path[:seen] + [self._entries[node] for node in nodes], allowed)

    def attention(self, device: torch.device) -> "ReplacedAttention":
        """Return a context manager for one pass, in which a model attends only within each text."""
        groups = [_Group.of([self._blocks[place] for place in places], device) for places in _alike(self._blocks)]
        order = [node for group in groups for node in group.nodes]
        pick = torch.tensor(order).argsort()  # padding, which is -1, comes first
        pick = pick[len(order) - len(self) :].to(device)
        entries = torch.tensor(self._entries, device=device)
        layers = itertools.count()

        def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
            every = key.shape[1] // self._num_keys  # models repeat a key for the query heads that share it
            keys, values = key[0, ::every], value[0, ::every]  # (key heads, nodes, size)
            if self._memory is not None:
                keys, values = self._memory.write(next(layers), entries, keys, values)
            seen = torch.cat([group.attend(query[0], keys, values, scale) for group in groups])
            return seen.index_select(0, pick).transpose(0, 1)[None]  # (1, heads, nodes, size)

        return ReplacedAttention(attend)


def _alike(blocks: Sequence[_Block]) -> Iterator[list[int]]:
    """Yield indices of blocks of similar size."""
    for batch in batches([len(block.keys) for block in blocks], 2**30, _MAX_WASTE):
        for part in batches([len(blocks[place].queries) for place in batch], 2**30, 0.5):
            yield [batch[place] for place in part]


@dataclass(frozen=True)
class _Group:
    """Blocks of similar size, padded."""

    nodes: list[int]  # the node of each query, -1 for padding
    queries: Tensor  # int64 (blocks * widest,), nodes
    keys: Tensor  # int64 (blocks * longest,), entries
    mask: Tensor  # float32 (blocks, 1, widest, longest), added to scores: -inf for hidden keys

    @classmethod
    def of(cls, blocks: Sequence[_Block], device: torch.device) -> Self:
        widest, longest = max(len(b.queries) for b in blocks), max(len(b.keys) for b in blocks)
        nodes = [node for b in blocks for node in (*b.queries, *[-1] * (widest - len(b.queries)))]
        keys = [entry for b in blocks for entry in (*b.keys, *[b.keys[0]] * (longest - len(b.keys)))]
        allowed = torch.zeros(len(blocks), widest, longest, dtype=torch.bool)
        allowed[..., 0] = True  # padding queries also need a key, because an empty softmax is NaN
        for place, block in enumerate(blocks):
            allowed[place, : len(block.queries), : len(block.keys)] = block.allowed
        mask = torch.zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)[:, None]
        queries = torch.tensor(nodes).clamp(min=0)
        return cls(nodes, queries.to(device), torch.tensor(keys, device=device), mask.to(device))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """Attend from (heads, nodes, size) to (key heads, entries, size); return (blocks * widest, heads, size)."""
        count = len(self.mask)
        q, k, v = (
            all_of.index_select(1, index).unflatten(1, (count, -1)).transpose(0, 1)
            for all_of, index in ((query, self.queries), (keys, self.keys), (values, self.keys))
        )  # (blocks, heads, widest or longest, size)
        seen = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask.to(q.dtype), scale=scale, enable_gqa=len(query) > len(keys)
        )
        return seen.transpose(1, 2).flatten(0, 1)


Attend = Callable[[Tensor, Tensor, Tensor, float | None], Tensor]
"""Computes attention from queries, keys, values, each (1, heads, length, size), and a scale of query-key products."""


class ReplacedAttention(TorchFunctionMode):
    """Within this context, replaces `scaled_dot_product_attention` with a function that ignores the mask."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **given)
        query, key, value = args[:3]
        if torch.is_autocast_enabled(query.device.type):
            # Cast as autocast would for the replaced function: keys are float32 after the rotary embedding.
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if (sharing := query.shape[2] // key.shape[2]) > 1:
            # For a single query, Transformers lays out the heads that share a key as rows.
            query = query.reshape(len(query), -1, key.shape[2], query.shape[3])
            key, value = (one.repeat_interleave(sharing, dim=1) for one in (key, value))
        return self._attend(query, key, value, given.get("scale"))
