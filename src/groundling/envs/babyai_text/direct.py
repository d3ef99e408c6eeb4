"""Sample GLAM's levels from the original distribution without rejecting whole levels.

The original samples the objects, their positions, the agent and the mission. It rejects the level unless the split
allows the mission, all objects are reachable, and a "put next to" mission is not yet fulfilled. Instead, this module

- samples the nouns from their exact distribution, given that the split allows the mission (`draw_nouns`);
- samples the positions, on bitboards, until everything is reachable (`draw_places`);
- repeats both only if the two objects of a "put next to" mission are already adjacent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from minigrid.core.constants import COLOR_NAMES

KINDS = ("key", "ball", "box")
NOUNS = tuple((kind, colour) for kind in KINDS for colour in COLOR_NAMES)  # equally likely; a *noun* below is an index

# A room has 8 × 8 cells, including walls. Cell (x, y) has index x + 8 y; a board is an int with one bit per cell.
_SIDE = 8
_INSIDE = np.array([x + _SIDE * y for y in range(1, _SIDE - 1) for x in range(1, _SIDE - 1)])
_PLACES = [(cell % _SIDE, cell // _SIDE) for cell in range(_SIDE * _SIDE)]  # (x, y) of each index
_INSIDE_BOARD = sum(1 << cell for cell in _INSIDE.tolist())
_AHEAD = (1, _SIDE, -1, -_SIDE)  # in Minigrid's order: right, down, left, up
MOST_THINGS = 16  # everything is reachable in 1 of 500 layouts with 16 things, and in 1 of several thousand with 18


@dataclass(frozen=True, slots=True)
class Places:
    agent: tuple[int, int]
    direction: int
    things: list[tuple[int, int]]

    def touching(self, some: Sequence[int], others: Sequence[int]) -> bool:
        """Return True if a thing in ``some`` is adjacent to one in ``others`` (both list indices into ``things``)."""
        pairs = ((self.things[i], self.things[j]) for i in some for j in others)
        return any(abs(x - u) + abs(y - v) <= 1 for (x, y), (u, v) in pairs)


def draw_nouns(rng: np.random.Generator, count: int, num_named: int, admitted: Sequence[int]) -> list[int]:
    """Sample the nouns of ``count`` objects; the mission refers to the first ``num_named`` (1 or 2) of them.

    The original samples the objects, then one of them for the mission, then a second one, which may be the first again
    if another object looks the same. It rejects the level unless both are ``admitted``. Let p be the probability that
    a noun is admitted, and u the probability that no other object looks like the first. Then the second object is

    - a different object, with weight (count - 1) / count · p²;
    - the first one again, if another object looks the same, with weight p (1 - u) / count; the nouns are then equal;
    - the first one again, which is unique and therefore replaced, with weight p u / count times the probability that
      the replacement, one of the other nouns, is admitted.
    """
    nouns: list[int] = rng.integers(len(NOUNS), size=count).tolist()
    nouns[0] = first = _pick(rng, admitted)
    if num_named == 1:
        return nouns
    p, others = len(admitted) / len(NOUNS), len(NOUNS) - 1
    alone = (others / len(NOUNS)) ** (count - 1)
    another = (count - 1) / count * p * p
    twice = p * (1 - alone) / count
    replaced = p * alone / count * (len(admitted) - 1) / others
    drawn = rng.random() * (another + twice + replaced)
    if drawn < another:
        nouns[1] = _pick(rng, admitted)
    elif drawn < another + twice:
        while first not in nouns[1:]:
            nouns[1:] = rng.integers(len(NOUNS), size=count - 1).tolist()
        like_it = nouns.index(first, 1)  # positions are random, so the nouns can be reordered
        nouns[1], nouns[like_it] = nouns[like_it], nouns[1]
    else:
        rest = rng.integers(others, size=count - 1)
        nouns[1:] = (rest + (rest >= first)).tolist()
        nouns[1] = _pick(rng, [noun for noun in admitted if noun != first])
    return nouns


def draw_places(rng: np.random.Generator, count: int) -> Places:
    """Place the agent and ``count`` things that are not adjacent to it; repeat until all things are reachable."""
    while True:
        agent, direction = _pick(rng, _INSIDE), int(rng.integers(4))
        things = _draw_cells(rng, count, spread(1 << agent))
        if all_in_reach(agent, sum(1 << cell for cell in things)):
            return Places(_PLACES[agent], direction, [_PLACES[cell] for cell in things])


def draw_places_by_door(rng: np.random.Generator, count: int) -> tuple[int, int, Places]:
    """Sample a room, its door's row, its things and the agent until everything is reachable. The agent does not face a
    thing or the door. In the right room, no thing is within one step of the centre, where the original code leaves the
    agent while it places things. Return the room's column (0: left, 1: right), the door's row and the positions.
    """
    middle = _SIDE // 2 * (1 + _SIDE)
    while True:
        column, row = int(rng.integers(2)), int(rng.integers(1, _SIDE - 1))
        things = _draw_cells(rng, count, spread(1 << middle) if column == 1 else 0)
        door = (_SIDE - 1 if column == 0 else 0) + _SIDE * row
        board = sum(1 << cell for cell in things) | 1 << door
        while True:
            agent, direction = _pick(rng, _INSIDE), int(rng.integers(4))
            if not board & (1 << agent | 1 << agent + _AHEAD[direction]):
                break
        if all_in_reach(agent, board):
            return column, row, Places(_PLACES[agent], direction, [_PLACES[cell] for cell in things])


def all_in_reach(agent: int, things: int) -> bool:
    """Return True if the agent can get next to every cell in ``things`` without moving a thing."""
    reached, before = 1 << agent, 0
    free = _INSIDE_BOARD & ~things | reached
    while reached != before:
        before, reached = reached, spread(reached) & free
    return not things & ~spread(reached)


def _pick(rng: np.random.Generator, choices: Sequence[int] | np.ndarray) -> int:
    return int(choices[int(rng.integers(len(choices)))])


def _draw_cells(rng: np.random.Generator, count: int, taken: int) -> list[int]:
    return [cell for cell in rng.permutation(_INSIDE).tolist() if not taken >> cell & 1][:count]


def spread(board: int, width: int = _SIDE) -> int:
    """Return a board with all adjacent cells added. Set bits are within the walls, so shifts do not wrap around."""
    return board | board << 1 | board >> 1 | board << width | board >> width
