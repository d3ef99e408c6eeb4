"""What a model's layers look at, as its config tells: all that was read, a window or a chunk of it, or a state.

From this follow the masks under which several candidates share a row, and the lengths at which a model begins to
compute otherwise: beyond a window, beyond a chunk, and beyond the context that longrope (arXiv 2402.13753) stretches,
where the positions of a whole text are encoded by other frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_SPANS = {_SLIDING: ("sliding_window", "window_size"), _CHUNKED: ("attention_chunk_size",)}
"""Of each kind of attention that does not see all: where configs have its span."""


@dataclass(frozen=True)
class Layers:
    """Of a causal body, or of a decoder."""

    spans: Mapping[str, int | None]
    """Of each kind of attention among the layers, by Transformers' name: how many tokens a window or chunk has."""
    others: tuple[str, ...]
    """Kinds that no mask of ours tells what to read: recurrent ones, convolutions, compressed attention."""
    turns: tuple[int, ...]
    """Lengths beyond which positions are encoded otherwise, from the first token on."""

    @classmethod
    def of(cls, config: Any) -> Self:
        """As the config of a model tells."""
        config = config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None) or _kinds_of(config)
        spans = {kind: _span(config, kind) for kind in dict.fromkeys(kinds) if kind in (_FULL, *_SPANS)}
        others = tuple(sorted({kind for kind in kinds if kind not in spans}))
        return cls(spans, others, _turns(config))

    @property
    def window(self) -> int | None:
        """The shortest span; None where all layers see everything."""
        return min((span for span in self.spans.values() if span), default=None)

    def stage(self, length: int) -> int:
        """Texts of lengths of one stage have their positions encoded alike, and can be read together."""
        return sum(length > turn for turn in self.turns)

    def by_stage(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of texts of such lengths, those of one stage together, in their order."""
        groups: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            groups.setdefault(self.stage(length), []).append(index)
        return list(groups.values())

    def crossed(self, length: int, longer: int) -> int:
        """The first length beyond which positions are encoded otherwise, between the two; 0 where there is none."""
        return next((turn for turn in self.turns if length <= turn < longer), 0)

    def least(self, length: int) -> int:
        """The least length at which all is computed that is at ``length``: what it is tried at; 0 of the shortest."""
        limits = [*self.turns, *(span for span in self.spans.values() if span)]
        return max((limit + 1 for limit in limits if length > limit), default=0)

    def masks(self, allowed: Tensor, rows: Tensor, columns: Tensor) -> Tensor | dict[str, Tensor]:
        """What each layer may attend to, as bodies take it: one mask, or one for each kind of attention.

        Args:
            allowed: Bool (batch, 1, rows, columns): what layers may attend to that see everything.
            rows: int64 (batch, rows): positions of what attends.
            columns: int64 (batch, columns): positions of what is attended to.
        """
        last = int(rows.max())
        if self.window is None or last < self.window:
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


def _kinds_of(config: Any) -> list[str]:
    """Of a config that does not list its layers, they are all of one kind."""
    return [kind for kind in _SPANS if _span(config, kind)][:1] or [_FULL]


def _span(config: Any, kind: str) -> int | None:
    if kind == _SLIDING and getattr(config, "use_sliding_window", True) is False:
        return None
    return next((span for name in _SPANS.get(kind, ()) if (span := getattr(config, name, None))), None)


def _turns(config: Any) -> tuple[int, ...]:
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # One set of parameters, or one for each kind of layer.
    every = [given, *(part for part in given.values() if isinstance(part, Mapping))]
    turns = {
        part.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for part in every
        if part.get("rope_type", part.get("type")) == "longrope"
    }
    return tuple(sorted(turn for turn in turns if turn))
