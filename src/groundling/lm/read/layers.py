"""Kinds of a model's layers by its config: attention to the whole text, a window or a chunk; recurrent states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
# Config keys of the span, for each kind of attention that has one.
_SPAN_KEYS = {_SLIDING: ("sliding_window", "window_size"), _CHUNKED: ("attention_chunk_size",)}


@dataclass(frozen=True)
class Layers:
    """Kinds of layers of a causal body or a decoder, and the lengths at which they start to compute differently."""

    spans: Mapping[str, int | None]
    """Tokens of the window or chunk of each kind of attention, by Transformers' name; None: all tokens."""
    others: tuple[str, ...]  # Kinds that no attention mask describes: recurrent, convolutions, compressed attention
    switches: tuple[int, ...]
    """Lengths beyond which all positions of a text are encoded differently, as longrope (arXiv 2402.13753) does."""

    @classmethod
    def of(cls, config: Any) -> Self:
        config = config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None) or _only_kind(config)
        spans = {kind: _span(config, kind) for kind in dict.fromkeys(kinds) if kind in (_FULL, *_SPAN_KEYS)}
        others = tuple(sorted({kind for kind in kinds if kind not in spans}))
        return cls(spans, others, _switches(config))

    @property
    def window(self) -> int | None:
        """The shortest span; None if all attention is full."""
        return min((span for span in self.spans.values() if span), default=None)

    @property
    def attend_to_all(self) -> bool:
        """True if every layer attends to the whole text, at any length."""
        return not (self.others or self.switches or self.window)

    def stage(self, length: int) -> int:
        """Number of switches that a length exceeds; texts of one stage can share a batch."""
        return sum(length > switch for switch in self.switches)

    def by_stage(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of texts of these lengths, grouped by stage."""
        groups: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            groups.setdefault(self.stage(length), []).append(index)
        return list(groups.values())

    def switch_between(self, length: int, longer: int) -> int:
        """Return the first switch that a text crosses as it grows from ``length`` to ``longer`` tokens, or 0."""
        return next((switch for switch in self.switches if length <= switch < longer), 0)

    def check_length(self, length: int) -> int:
        """Length for exactness checks: the shortest text computed like one of ``length`` tokens; 0: any short text."""
        limits = [*self.switches, *(span for span in self.spans.values() if span)]
        return max((limit + 1 for limit in limits if length > limit), default=0)

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


def _only_kind(config: Any) -> list[str]:
    """The kind of all layers, for configs that do not list them."""
    return [kind for kind in _SPAN_KEYS if _span(config, kind)][:1] or [_FULL]


def _span(config: Any, kind: str) -> int | None:
    if kind == _SLIDING and getattr(config, "use_sliding_window", True) is False:
        return None
    return next((span for name in _SPAN_KEYS.get(kind, ()) if (span := getattr(config, name, None))), None)


def _switches(config: Any) -> tuple[int, ...]:
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # one set of parameters, or one for each kind of layer
    every = [given, *(part for part in given.values() if isinstance(part, Mapping))]
    switches = {
        part.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for part in every
        if part.get("rope_type", part.get("type")) == "longrope"
    }
    return tuple(sorted(switch for switch in switches if switch))
