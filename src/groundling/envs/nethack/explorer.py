"""A player by rules: it looks for the stairs down and takes them. For collecting data, and as a baseline.

It reads the terminal: walks to ``>`` where it knows one, else to the nearest square with something unknown beside it,
else to squares where it has been least, searching for hidden doors on the way. It fights what stands in its way, eats
when hungry, and prefers doors, which are never passed diagonally.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import numpy as np

from groundling.envs.nethack import ACTIONS
from groundling.envs.nethack.observation import TERMINAL_SHAPE

Cell = tuple[int, int]
"""Row and column of the terminal."""

_MAP_ROWS = range(1, 22)
_STEPS: dict[Cell, int] = {
    (-1, 0): ACTIONS.index("north"),
    (0, 1): ACTIONS.index("east"),
    (1, 0): ACTIONS.index("south"),
    (0, -1): ACTIONS.index("west"),
    (-1, 1): ACTIONS.index("northeast"),
    (1, 1): ACTIONS.index("southeast"),
    (1, -1): ACTIONS.index("southwest"),
    (-1, -1): ACTIONS.index("northwest"),
}
_MORE, _DOWN, _KICK, _EAT, _SEARCH = (
    ACTIONS.index(name) for name in ("more", "down", "kick", "eat", "search")
)
_YES, _NO = ACTIONS.index("northwest"), ACTIONS.index("southeast")  # the keys y and n

_BLANK, _DOOR_COLOUR = ord(" "), 3
_DOORS = frozenset(b"+-|")  # in `_DOOR_COLOUR`; in another these are walls, and + is a book
_FLOOR = frozenset(b".#<>{_\\^")
_THINGS = frozenset(b'$%*!?/="([)')
_BOULDER = ord("`")
_PERSISTENCE = 12
"""So many searches at one spot before it looks elsewhere."""
_MEALTIME = 50
"""Steps between two attempts to eat."""


class Explorer:
    """Chooses actions by rules; keeps what it has found out about each level of one game.

    Args:
        seed: Of its own random choices, taken where several are as good.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.begin()

    def begin(self) -> None:
        """Forget the last game."""
        self._visits: dict[tuple[int, int], Counter[Cell]] = {}
        self._stairs: dict[tuple[int, int], Cell] = {}
        self._barred: dict[tuple[int, int], Counter[tuple[Cell, Cell]]] = {}
        self._searches: Counter[Cell] = Counter()
        self._tried: tuple[Cell, Cell] | None = None
        self._steps = 0
        self._last_meal = -_MEALTIME

    def act(self, observation: Mapping[str, np.ndarray]) -> int:
        """Choose an action for an observation with ``tty_chars``, ``tty_colors``, ``blstats`` and ``message``."""
        self._steps += 1
        stats = observation["blstats"]
        message = observation["message"].tobytes()
        answer = self._answer(message)
        if answer is not None:
            return answer
        here = int(stats[1]) + 1, int(stats[0])
        level = int(stats[23]), int(stats[24])
        self._look(observation, level, here)
        if stats[21] >= 2 and self._steps - self._last_meal >= _MEALTIME:  # hungry
            self._last_meal = self._steps
            return _EAT
        return self._walk(observation, level, here)

    def _answer(self, message: bytes) -> int | None:
        if b"What do you want to eat" in message:
            return _YES
        if b"eat it? [" in message:
            return _NO
        if b"attack" in message and b"?" in message:
            return _YES
        if b"direction?" in message:
            return _MORE
        return None

    def _look(self, observation: Mapping[str, np.ndarray], level: tuple[int, int], here: Cell) -> None:
        """Take in where the stairs are, and whether the last step led where it should."""
        visits = self._visits.setdefault(level, Counter())
        visits[here] += 1
        barred = self._barred.setdefault(level, Counter())
        if self._tried is not None and self._tried[0] == here:
            barred[self._tried] += 1
        self._tried = None
        rows, columns = np.nonzero(observation["tty_chars"][_MAP_ROWS.start : _MAP_ROWS.stop] == ord(">"))
        if len(rows):
            self._stairs[level] = int(rows[0]) + _MAP_ROWS.start, int(columns[0])

    def _walk(self, observation: Mapping[str, np.ndarray], level: tuple[int, int], here: Cell) -> int:
        if self._stairs.get(level) == here:
            return _DOWN
        chars, colours = observation["tty_chars"].tolist(), observation["tty_colors"].tolist()
        visits, stairs = self._visits[level], self._stairs.get(level)
        came_from: dict[Cell, Cell] = {here: here}
        queue = deque([here])
        frontier: Cell | None = None
        while queue:
            cell = queue.popleft()
            if cell == stairs:
                return self._step(here, cell, came_from)
            if frontier is None and cell != here and not visits[cell] and _beside_unknown(chars, cell):
                frontier = cell
            for following in self._neighbours(chars, colours, level, cell):
                if following not in came_from:
                    came_from[following] = cell
                    queue.append(following)
        if frontier is not None:
            return self._step(here, frontier, came_from)
        return self._search(here, came_from, visits)

    def _search(self, here: Cell, came_from: dict[Cell, Cell], visits: Counter[Cell]) -> int:
        """Nothing new can be reached: search where it may help, then go where it has been least."""
        if self._searches[here] < _PERSISTENCE and self._rng.random() < 0.7:
            self._searches[here] += 1
            return _SEARCH
        others = [cell for cell in came_from if cell != here]
        if not others:
            return int(self._rng.choice(list(_STEPS.values())))
        fewest = min(visits[cell] + self._searches[cell] for cell in others)
        least = [cell for cell in others if visits[cell] + self._searches[cell] == fewest]
        return self._step(here, least[int(self._rng.integers(len(least)))], came_from)

    def _step(self, here: Cell, goal: Cell, came_from: dict[Cell, Cell]) -> int:
        """The first step of the way that leads to ``goal``."""
        cell = goal
        while came_from[cell] != here:
            cell = came_from[cell]
        self._tried = here, cell
        return _STEPS[cell[0] - here[0], cell[1] - here[1]]

    def _neighbours(
        self, chars: list[list[int]], colours: list[list[int]], level: tuple[int, int], cell: Cell
    ) -> Iterator[Cell]:
        barred = self._barred[level]
        at_door = _is_door(chars, colours, cell)
        for down, right in _STEPS:
            row, column = following = cell[0] + down, cell[1] + right
            if row not in _MAP_ROWS or not 0 <= column < TERMINAL_SHAPE[1]:
                continue
            if barred[cell, following] >= 3 or not _passable(chars, colours, following):
                continue
            if down and right and (at_door or _is_door(chars, colours, following)):
                continue
            yield following


def _is_door(chars: list[list[int]], colours: list[list[int]], cell: Cell) -> bool:
    row, column = cell
    return chars[row][column] in _DOORS and colours[row][column] == _DOOR_COLOUR


def _passable(chars: list[list[int]], colours: list[list[int]], cell: Cell) -> bool:
    """Whether the hero may try to go there: floor, doors, things, boulders, and whoever can be fought."""
    row, column = cell
    char = chars[row][column]
    return (
        char in _FLOOR or char in _THINGS or char == _BOULDER or chr(char).isalpha() or char in b"@&';:"
    ) or _is_door(chars, colours, cell)


def _beside_unknown(chars: list[list[int]], cell: Cell) -> bool:
    row, column = cell
    return any(
        chars[r][c] == _BLANK
        for r in range(max(row - 1, _MAP_ROWS.start), min(row + 2, _MAP_ROWS.stop))
        for c in range(max(column - 1, 0), min(column + 2, TERMINAL_SHAPE[1]))
    )
