"""Use a `PrefixTree` to read a conversation's steps as one text, and to cache earlier prompts and frozen layers."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from groundling.lm.backbone import Backbone
from groundling.lm.load.model_files import is_sharded
from groundling.lm.read.batching import TOKENS_AT_ONCE, RowStates, ScoringQuestion, layouts_of
from groundling.lm.read.exactness import agree, example_tokens
from groundling.lm.read.prefix_tree import Branch, KeyValueMemory, PrefixTree, Text, joined

MAX_BYTES = 2**29  # Size limit for the cached states of a language model's frozen layers: 512 MiB
_NODES_AT_ONCE = 1024  # Tokens per pass on a CPU: enough for fast matrix products, but few enough to fit in its cache
_ADAPTERS = ("lora_", "modules_to_save.")  # Parts of the names of weights that PEFT enables and disables

_Read = Callable[[Sequence[ScoringQuestion]], list[RowStates]]


def num_frozen(body: nn.Module) -> int:
    """Count the layers before the first one with trainable weights or adapters; 0 if the embeddings are trainable."""
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return 0
    embeddings: Any = body.get_input_embeddings()  # type: ignore[operator]
    if any(p.requires_grad for p in embeddings.parameters()):
        return 0
    learns = (
        any(p.requires_grad or any(part in name for part in _ADAPTERS) for name, p in layer.named_parameters())
        for layer in layers
    )
    return next((number for number, one in enumerate(learns) if one), len(layers))


class TreeReader:
    """Reads each distinct prefix of a pass once; exactness checks compare it with ``plain``."""

    def __init__(self, backbone: Backbone, plain: _Read) -> None:
        self._backbone, self._plain = backbone, plain
        self.frozen = FrozenStates()
        self._is_exact: bool | None = None
        self._is_exact_above: dict[int, bool] = {0: False}  # by the number of frozen layers

    @property
    def why_not(self) -> str | None:
        """The reason why this reader does not work for the model; None if it does. Checked once."""
        if (why := self._backbone.why_not_replaceable) is not None:
            return why
        if self._is_exact is None:
            self._is_exact = self._check()
        return None if self._is_exact else "its states differ from those of separate steps in an exactness check"

    @property
    def has_frozen_layers(self) -> bool:
        """True if lower layers are frozen and `read_upper` is exact; checked once for each number of frozen layers."""
        # This needs float32 on a CPU. In inference mode, cached states would have no gradients.
        backbone = self._backbone
        if backbone.device.type != "cpu" or not backbone.exact or torch.is_inference_mode_enabled():
            return False
        if backbone.why_not_replaceable is not None or is_sharded(backbone.model):
            return False
        frozen = num_frozen(backbone.body)
        if frozen not in self._is_exact_above:
            self._is_exact_above[frozen] = self._check_upper()
            self.frozen = FrozenStates(self.frozen.max_bytes)
        return self._is_exact_above[frozen]

    def read(self, questions: Sequence[ScoringQuestion], memory: KeyValueMemory | None = None) -> list[RowStates]:
        """Read questions whose prompts may extend each other; ``memory`` stores prompts that were read earlier."""
        # With memory, the weights must not have changed, and gradients must be disabled.
        answers: dict[int, RowStates] = {}
        texts, paths = joined(questions), []
        try:
            for group, tree in self._passes(texts, memory):
                backbone, device = self._backbone, self._backbone.device
                tokens, positions = torch.tensor([tree.tokens, tree.positions], device=device)
                with tree.attention(device):
                    hidden = backbone.read(tokens[None], _no_mask(device), positions[None])[0]
                paths += tree.paths
                answers.update(_answers(hidden, tree, [texts[place] for place in group]))
        except BaseException:
            if memory is not None:
                memory.keep([])
            raise
        if memory is not None:
            memory.keep(paths)
        return [answers[index] for index in range(len(questions))]

    def read_upper(self, questions: Sequence[ScoringQuestion]) -> list[RowStates]:
        """Read questions, starting from cached states of the frozen layers; see `has_frozen_layers`."""
        backbone = self._backbone
        frozen = num_frozen(backbone.body)
        self.frozen.check_weights(backbone.body, frozen)
        texts = [
            ([index], Text(tuple(question.prompt), [Branch(len(question.prompt), layout)]))
            for index, (question, layout) in enumerate(zip(questions, layouts_of(questions), strict=True))
        ]
        answers: dict[int, RowStates] = {}
        texts.sort(key=lambda text: text[1].trunk)
        for group, tree in self._passes(texts):
            with torch.no_grad():
                lower = [self._lower(texts[place][1], frozen) for place in group]
            nodes: list[int] = []  # nodes of each text's tokens and rows, in the order of a separate pass
            for path, rows in zip(tree.paths, tree.rows, strict=True):
                nodes += [*path, *(node for of_question in rows for node in of_question[1:])]
            first = dict(zip(reversed(nodes), reversed(range(len(nodes))), strict=True))
            states = torch.cat(lower)[torch.tensor([first[node] for node in range(len(tree))])]
            hidden = self._run(tree, states, frozen, None)
            answers.update(_answers(hidden, tree, [texts[place] for place in group]))
        return [answers[index] for index in range(len(questions))]

    def _passes(
        self, texts: Sequence[tuple[list[int], Text]], memory: KeyValueMemory | None = None
    ) -> Iterator[tuple[list[int], PrefixTree]]:
        """Yield the indices of texts that are read together, with their tree."""
        config = self._backbone.model.config.get_text_config()
        num_keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        most = _NODES_AT_ONCE if self._backbone.device.type == "cpu" else TOKENS_AT_ONCE
        tree, group = PrefixTree(num_keys, memory), list[int]()
        for place, (_, text) in enumerate(texts):
            tree.add(text)
            group.append(place)
            if len(tree) >= most or place == len(texts) - 1:
                yield group, tree
                tree, group = PrefixTree(num_keys, memory), []

    def _lower(self, text: Text, frozen: int) -> Tensor:
        """Return the output of the frozen layers (nodes, hidden), cached."""
        # Each text is computed separately so that its states do not depend on other texts, even in resumed runs.
        if (states := self.frozen.get(text)) is not None:
            return states
        ((_, tree),) = self._passes([([0], text)])
        embeddings: Any = self._backbone.body.get_input_embeddings()  # type: ignore[operator]
        states = self._run(tree, embeddings(torch.tensor(tree.tokens, device=self._backbone.device)), 0, frozen)
        self.frozen.put(text, states)
        return states

    def _run(self, tree: PrefixTree, states: Tensor, first: int, stop: int | None) -> Tensor:
        """Run layers from ``first`` to ``stop``, or through the final norm, on states (nodes, hidden)."""
        body: Any = self._backbone.body
        output: list[Tensor] = []
        handle = None
        if stop is not None:
            handle = body.layers[stop - 1].register_forward_hook(
                lambda module, given, made: output.append(made[0] if isinstance(made, tuple) else made)
            )
        try:
            with _layers(body, first, stop), tree.attention(states.device):
                final = body(
                    inputs_embeds=states[None],
                    attention_mask=_no_mask(states.device),
                    position_ids=torch.tensor(tree.positions)[None],
                    use_cache=False,
                ).last_hidden_state
        finally:
            if handle is not None:
                handle.remove()
        return (output[0] if output else final)[0]

    @torch.no_grad()
    def _check(self) -> bool:
        """Compare `read`, with and without memory, with the plain pass."""
        tokens, others = example_tokens(self._backbone, 40), example_tokens(self._backbone, 40, 11, 3)
        questions = [ScoringQuestion(tokens[:length], _candidates(tokens)) for length in (9, 17, 34)]
        pairs = [[q, ScoringQuestion(others[: len(q.prompt) + 2], [tokens[1:3]])] for q in questions]
        memory = KeyValueMemory()

        def states(read: _Read, read_on: _Read) -> list[Tensor]:
            answers = [*read(questions), *(one for pair in pairs for one in read_on(pair))]
            return [answer.rows[answer.targets[0]].float() for answer in answers]

        return agree(
            self._backbone,
            lambda: states(self.read, partial(self.read, memory=memory)),
            lambda: states(self._plain, self._plain),
        )

    def _check_upper(self) -> bool:
        """Compare `read_upper` and the gradients of all trainable weights with the plain pass."""
        tokens = example_tokens(self._backbone, 24)
        prompts = [tokens[:9], tokens[:17], [*tokens[:5], *tokens[11:24]]]
        questions = [ScoringQuestion(prompt, _candidates(tokens)) for prompt in prompts]
        weights = [p for p in self._backbone.body.parameters() if p.requires_grad]

        def states(read: _Read) -> list[Tensor]:
            with torch.enable_grad():
                rows = torch.cat([answer.rows[answer.targets[0]] for answer in read(questions)])
                loss = (rows * torch.linspace(-1, 1, rows.shape[1])).sum()
                gradients = torch.autograd.grad(loss, weights) if weights else []
            return [rows.detach(), *gradients]

        return agree(self._backbone, lambda: states(self.read_upper), lambda: states(self._plain))


def _candidates(tokens: list[int]) -> list[list[int]]:
    return [[tokens[0]], tokens[1:3], [tokens[1], *tokens[3:5]], []]


@dataclass(eq=False)
class FrozenStates:
    """LRU cache for the states of texts after the frozen layers; copies of a model start with an empty cache."""

    max_bytes: int = MAX_BYTES
    states: OrderedDict[object, Tensor] = field(default_factory=OrderedDict)
    num_bytes: int = 0
    _weights: list[tuple[int, int]] = field(default_factory=list)

    def __deepcopy__(self, memo: dict[int, object]) -> "FrozenStates":
        return FrozenStates(self.max_bytes)

    def check_weights(self, body: Any, frozen: int) -> None:
        """Clear the cache if its states were computed with different weights or a different number of layers."""
        modules = [body.get_input_embeddings(), *body.layers[:frozen]]
        weights = [(p.data_ptr(), p._version) for module in modules for p in module.parameters()]
        if weights != self._weights:
            self.states, self.num_bytes, self._weights = OrderedDict(), 0, weights

    def get(self, text: Text) -> Tensor | None:
        if (key := _key(text)) in self.states:
            self.states.move_to_end(key)
        return self.states.get(key)

    def put(self, text: Text, states: Tensor) -> None:
        self.states[_key(text)] = states
        self.num_bytes += states.nbytes
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= self.states.popitem(last=False)[1].nbytes


def _key(text: Text) -> object:
    return text.trunk, tuple((tuple(layout.tokens), tuple(layout.depths)) for _, layout in text.branches)


def _answers(
    hidden: Tensor, tree: PrefixTree, texts: Sequence[tuple[list[int], Text]]
) -> Iterator[tuple[int, RowStates]]:
    """Yield each question's index and answer, extracted from a pass's states (nodes, hidden)."""
    rows = [torch.tensor(nodes) for of_text in tree.rows for nodes in of_text]
    # One look-up and one split, because the backward pass of each slice would copy all states.
    parts = F.embedding(torch.cat(rows).to(hidden.device), hidden).split(list(map(len, rows)))
    asked = [(index, b.layout) for group, text in texts for index, b in zip(group, text.branches, strict=True)]
    for (index, layout), part in zip(asked, parts, strict=True):
        yield index, RowStates(part, layout.targets)


def _no_mask(device: torch.device) -> Tensor:
    """Return a mask that models pass on unchanged."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


@contextmanager
def _layers(body: Any, first: int, stop: int | None) -> Iterator[None]:
    """Within this context, ``body`` has only the layers from ``first`` to ``stop``."""
    whole = body.layers
    body.layers = whole[first:stop]
    try:
        yield
    finally:
        body.layers = whole
