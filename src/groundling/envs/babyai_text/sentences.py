"""The sentences of many views at once, by a look-up table: exactly those of `describe`.

What is said of a view comes from its cells in the order of the sentences: the agent's own cell, for what it carries;
the three rays, for their walls; then all cells, for everything else. The table has what `describe` says of each such
place where each thing stands alone; a wall behind something is then left out.
"""

from functools import cache
from typing import Literal

import numpy as np

from groundling.envs.babyai_text.descriptions import describe
from groundling.envs.babyai_text.sight import CODED, EMPTY, ENCODED, VIEW
from groundling.envs.languages import Language

_MIDDLE, _LAST = VIEW // 2, VIEW - 1
OWN_CELL = _MIDDLE * VIEW + _LAST
"""Cells are numbered as `sight.views` has them."""
_RAYS = (
    [_MIDDLE * VIEW + row for row in reversed(range(_LAST))],  # ahead, from the nearest
    [column * VIEW + _LAST for column in reversed(range(_MIDDLE))],  # to the left
    [column * VIEW + _LAST for column in range(_MIDDLE + 1, VIEW)],  # to the right
)
_CELLS = np.array([OWN_CELL, *(cell for ray in _RAYS for cell in ray), *range(VIEW * VIEW)])
"""By place, its cell: int ``(num_places,)``."""
_FIRST_ENTRIES = np.arange(len(_CELLS)) * len(CODED)
"""By place, where in the table it begins."""


def tell(views: np.ndarray, language: Language, compat: Literal["glam"] | None) -> list[list[str]]:
    """The sentences of each view.

    Args:
        views: Uint8 ``(n, 49)``, as `sight.views` gives them.
        language: They are told in it.
        compat: See `describe`.
    """
    words, is_described = _table(language, compat)
    codes = views.take(_CELLS, axis=1)  # (n, num_places)
    entries = codes + _FIRST_ENTRIES
    described = is_described.take(entries)
    begin = 1
    for ray in _RAYS:  # whatever is nearer hides a wall from the words
        end = begin + len(ray)
        described[:, begin + 1 : end] &= np.logical_and.accumulate(codes[:, begin : end - 1] <= EMPTY, axis=1)
        begin = end
    sentences = words.take(entries[described]).tolist()
    ends = described.sum(axis=1).cumsum().tolist()
    return [sentences[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@cache
def _table(language: Language, compat: Literal["glam"] | None) -> tuple[np.ndarray, np.ndarray]:
    """By place and code, the sentence and whether there is one: objects and bool ``(num_places × num_codes,)``."""
    nothing = np.zeros((VIEW, VIEW, 3), dtype=np.uint8)
    words = []
    for place, cell in enumerate(_CELLS.tolist()):
        for code, thing in enumerate(CODED):
            said: list[str] = []
            if thing is None:
                pass
            elif place == 0:
                said = describe(nothing, thing, language, compat) if thing.can_pickup() else []
            elif (thing.type == "wall") == (place < len(_CELLS) - VIEW * VIEW):
                alone = nothing.copy()
                alone.reshape(-1, 3)[cell] = ENCODED[code]
                said = describe(alone, None, language, compat)
            words.append(said[0] if said else "")
    return np.array(words, dtype=object), np.array([word != "" for word in words])
