"""A rule-based agent that looks for the stairs down, for data collection and as a baseline.

It walks to ``>`` if it has seen one, otherwise to the nearest unvisited square next to an unexplored one, otherwise to
the least visited square, searching for hidden doors in corners and dead ends. It kicks locked doors open, fights
whatever is in its way, and eats when hungry.
"""

import re
from collections import Counter, deque
from collections.abc import Mapping

import numpy as np

from groundling.envs.nethack import ACTIONS, WINDS
from groundling.envs.nethack.observation import TERMINAL_SHAPE

_ROWS, _COLUMNS = TERMINAL_SHAPE
_MAP = slice(1, 22)  # The map's rows on the terminal, between the message and the status lines
_UP, _LEFT = -_COLUMNS, -1
_OFFSETS = (_UP, -_LEFT, -_UP, _LEFT, _UP - _LEFT, -_UP - _LEFT, -_UP + _LEFT, _UP + _LEFT)
_STEPS = dict(zip(_OFFSETS, map(ACTIONS.index, WINDS), strict=True))
"""Actions, keyed by the difference between the indices of two cells; a cell's index is 80 · row + column."""
_STRAIGHT = _OFFSETS[:4]
_MORE, _DOWN, _KICK, _EAT, _SEARCH = (ACTIONS.index(name) for name in ("more", "down", "kick", "eat", "search"))
_YES, _NO = ACTIONS.index("northwest"), ACTIONS.index("southeast")  # the keys y and n

_DOORS = np.isin(np.arange(256), list(b"+-|"))  # doors if brown; otherwise walls, or a spellbook (+)
_DOOR_COLOUR = 3
_PASSABLE = np.array([chr(c) in ".#<>{_\\^$%*!?/=\"([)`@&';:~" or chr(c).isalpha() for c in range(256)])
"""Floors, objects, boulders, and creatures to fight or swap places with."""
_HUNGRY = 2
_MEALTIME = 50  # Minimum number of steps between two attempts to eat
_PATIENCE = 12  # Searches on one square before searching elsewhere
_ATTEMPTS = 3  # Failed steps before a path is considered blocked
_KICKS = 20  # Failed kicks at a door before the path is considered blocked
_LOCKED = re.compile(rb"door is locked|WHAMM|You kick at empty space")


class Explorer:
    """Rule-based agent that remembers each level of a game; ``seed`` is for random tie-breaking."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._levels: dict[tuple[int, int], _Level] = {}
        self._tried: tuple[int, int] | None = None
        self._steps, self._last_meal = 0, -_MEALTIME

    def act(self, observation: Mapping[str, np.ndarray]) -> int:
        """Choose an action for an observation with ``tty_chars``, ``tty_colors``, ``blstats`` and ``message``."""
        self._steps += 1
        message = observation["message"].tobytes()
        if (answer := self._answer(message)) is not None:
            return answer
        stats: list[int] = observation["blstats"].tolist()
        here = (stats[1] + 1) * _COLUMNS + stats[0]
        level = self._levels.setdefault((stats[23], stats[24]), _Level())
        level.visits[here] += 1
        if self._tried is not None and self._tried[0] == here:
            level.barred[self._tried] += 1
            if _LOCKED.search(message) and level.barred[self._tried] < _KICKS:
                return _KICK
        self._tried = None
        if stats[21] >= _HUNGRY and self._steps - self._last_meal >= _MEALTIME:
            self._last_meal = self._steps
            return _EAT
        chars = observation["tty_chars"]
        if (stairs := chars[_MAP].tobytes().find(b">")) >= 0:
            level.stairs = stairs + _COLUMNS * _MAP.start
        if level.stairs == here:
            return _DOWN
        came_from, frontier = level.ways(chars, observation["tty_colors"], here)
        if level.stairs in came_from:
            return self._step(here, level.stairs, came_from)
        if frontier is not None:
            return self._step(here, frontier, came_from)
        return self._search(here, came_from, level)

    def _answer(self, message: bytes) -> int | None:
        if b"What do you want to eat" in message:
            return _YES
        if b"eat it? [" in message or b"Really attack" in message:  # food on the floor may be rotten
            return _NO
        if b"direction?" in message:
            return _MORE if self._tried is None else _STEPS[self._tried[1] - self._tried[0]]
        return None

    def _search(self, here: int, came_from: dict[int, int], level: "_Level") -> int:
        """Search here, or walk to a rarely visited square where something may be hidden."""
        room = {cell: sum(cell + step in came_from for step in _STEPS) for cell in came_from}
        if room[here] < len(_STEPS) and level.searches[here] < _PATIENCE:
            level.searches[here] += 1
            return _SEARCH
        weights = {c: (1 + level.visits[c] + level.searches[c]) * room[c] for c in room if c != here}
        if not weights:
            return int(self._rng.choice(list(_STEPS.values())))
        lowest = min(weights.values())
        best = [cell for cell, weight in weights.items() if weight == lowest]
        return self._step(here, best[int(self._rng.integers(len(best)))], came_from)

    def _step(self, here: int, goal: int, came_from: dict[int, int]) -> int:
        cell = goal
        while came_from[cell] != here:
            cell = came_from[cell]
        self._tried = here, cell
        return _STEPS[cell - here]


class _Level:
    """The explorer's memory of a level; a cell's index is 80 · row + column, as on the terminal."""

    def __init__(self) -> None:
        self.stairs = -1  # cell of ``>``; -1 if unknown
        self.visits: Counter[int] = Counter()
        self.searches: Counter[int] = Counter()
        self.barred: Counter[tuple[int, int]] = Counter()  # failed steps from one cell to the next

    def ways(self, chars: np.ndarray, colours: np.ndarray, here: int) -> tuple[dict[int, int], int | None]:
        """Return the predecessor of each reachable cell on a shortest path (``here`` is its own), ordered by distance
        up to the stairs, and the nearest unvisited cell next to an unexplored one, if any.
        """
        doors = np.zeros(TERMINAL_SHAPE, dtype=bool)
        doors[_MAP] = _DOORS[chars[_MAP]] & (colours[_MAP] == _DOOR_COLOUR)
        passable = doors.copy()
        passable[_MAP] |= _PASSABLE[chars[_MAP]]
        passable[:, 0] = False  # not part of the map
        unknown = np.zeros((_ROWS + 2, _COLUMNS + 2), dtype=bool)
        unknown[1 + _MAP.start : 1 + _MAP.stop, 2 : 1 + _COLUMNS] = chars[_MAP, 1:] == ord(" ")
        rows = unknown[:-2] | unknown[1:-1] | unknown[2:]
        promising = (passable & (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:])).tobytes()  # next to an unexplored cell
        is_door, is_passable = doors.tobytes(), passable.tobytes()

        came_from, frontier = {here: here}, None
        queue = deque([here])
        while queue:
            cell = queue.popleft()
            if cell == self.stairs:
                break
            if frontier is None and promising[cell] and cell not in self.visits:
                frontier = cell
            for step in _STRAIGHT if is_door[cell] else _STEPS:
                following = cell + step
                if following in came_from or not is_passable[following]:
                    continue
                if is_door[following] and step not in _STRAIGHT:
                    continue
                if self.barred.get((cell, following), 0) < _ATTEMPTS:
                    came_from[following] = cell
                    queue.append(following)
        return came_from, frontier
