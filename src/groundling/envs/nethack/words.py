"""Motif's NetHack tasks as text envs: observations are sentences, and actions are phrases for the tasks' keys."""

import re
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from nle import nethack

from groundling.envs.nethack import ACTIONS, WINDS, make_goal
from groundling.envs.nethack.explorer import Explorer
from groundling.envs.nethack.glyph_words import BLOCKED, DOOR, FOOD, KICKABLE, MONSTER, glyph_tables
from groundling.envs.nethack.observation import EndStatus, message_text
from groundling.envs.nethack.tasks import EAT_CHOICES, NetHackScore, NetHackTask
from groundling.errors import ConfigError, RunError

_UP, _DOWN = "a staircase up", "a staircase down"
_KEYS = ("tty_chars", "tty_colors", "blstats", "message", "glyphs", "inv_strs", "inv_letters", "inv_oclasses")
_ROWS, _COLUMNS = nethack.DUNGEON_SHAPE
_ROW, _COLUMN = np.divmod(np.arange(_ROWS * _COLUMNS), _COLUMNS)
_BEYOND = np.full(_COLUMNS + 1, nethack.GLYPH_CMAP_OFF, dtype=np.int16).tobytes()  # below the map's last square
_STEPS = {
    "north": (-1, 0),
    "east": (0, 1),
    "south": (1, 0),
    "west": (0, -1),
    "northeast": (-1, 1),
    "southeast": (1, 1),
    "southwest": (1, -1),
    "northwest": (-1, -1),
}  # rows and columns, in the order of `WINDS`
_AROUND = np.array([row * _COLUMNS + column for row, column in _STEPS.values()])
_MOVES = [
    (ACTIONS.index(wind), f"go {wind}", ACTIONS.index(f"far {wind}"), f"go far {wind}", wind, 0 not in _STEPS[wind])
    for wind in WINDS
]  # key and phrase of a step and of a far move, the direction, and whether it is diagonal
_OTHERS = {name: ACTIONS.index(name) for name in ("search", "wait", "up", "down", "kick", "eat")}
_YES, _NO, _CANCEL = ACTIONS.index("northwest"), ACTIONS.index("southeast"), ACTIONS.index("more")
_SHOP = re.compile(r"[Ww]elcome(?: again)? to (\S+)'s ")
_HUNGER = ("satiated", "", "hungry", "weak", "fainting", "fainted", "starved")
_BURDEN = ("", "burdened", "stressed", "strained", "overtaxed", "overloaded")
_CONDITIONS = {
    nethack.BL_MASK_BLIND: "blind",
    nethack.BL_MASK_CONF: "confused",
    nethack.BL_MASK_STUN: "stunned",
    nethack.BL_MASK_HALLU: "hallucinating",
    nethack.BL_MASK_FOODPOIS: "food poisoned",
    nethack.BL_MASK_TERMILL: "terminally ill",
    nethack.BL_MASK_STONE: "turning to stone",
    nethack.BL_MASK_SLIME: "turning into slime",
    nethack.BL_MASK_STRNGL: "being strangled",
    nethack.BL_MASK_LEV: "levitating",
}
_METRICS = {"score": "score", "dlvl": "depth", "gold": "gold", "xlvl": "experience_level", "scout": "squares"}
GOALS = {
    "score": "fight, collect gold and go down, to score points",
    "staircase": "find the stairs down and descend to level {level}",
    "oracle": "find the Oracle, deep in the dungeon, and stand next to it",
}


class NetHackWords(gymnasium.Env[str, str]):
    """A text env that describes a `NetHackTask` in sentences. Rewards and episode ends are those of the task.

    The sentences are the message, the hero's status, what the hero stands on, what is seen and where (nearest first)
    and the inventory. ``info["actions"]`` lists phrases for the keys that may have an effect; each action takes one
    step of the task. They are moves towards squares that are not known to be walls, ``search``, ``wait``, and, where
    they apply, ``kick``, ``eat``, ``go up`` and ``go down``. After a question, they are the answers to it.

    At an episode's end, ``info["metrics"]`` contains score, depth, gold, experience level and explored squares.
    ``info["success"]`` is always False in the score task, which has no success criterion.

    Args:
        task: The task, with `_KEYS` as its observation keys.
        goal: The goal of every episode, as a sentence.
        most_seen: Maximum number of sentences about what is seen on the map.
        inventory: Describe the inventory.
    """

    may_differ: ClassVar[bool] = True  # the same seed may produce different shops, which depend on the clock
    metadata = NetHackTask.metadata

    def __init__(self, task: NetHackTask, goal: str, most_seen: int = 8, inventory: bool = True) -> None:
        if type(most_seen) is not int or most_seen < 0:
            raise ConfigError(f"most_seen must be a whole number of at least 0, got {most_seen!r}")
        self._task, self._goal, self.render_mode = task, goal, task.render_mode
        self._can_succeed = not isinstance(task, NetHackScore)
        self._most_seen, self._shows_inventory = most_seen, inventory
        self.observation_space = self.action_space = gymnasium.spaces.Text(100_000)
        self._phrases, self._seen, self._properties = glyph_tables()

    @property
    def _max_episode_steps(self) -> int:
        return int(self._task._max_episode_steps)

    @_max_episode_steps.setter
    def _max_episode_steps(self, limit: int) -> None:  # see `AdoptTimeLimit`
        self._task._max_episode_steps = limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._task.begin(seed, options)
        self._place: tuple[int, ...] = ()  # the hero's level and square
        self._below = self._phrases.index(_UP)  # glyph of what the hero stands on, as last seen; -1 if unknown
        self._map = b""
        self._shopkeeper: str | None = None
        self._pack = b""
        self._explorer: Explorer | None = None
        self._paid = False
        return self._observe(None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action not in self._admissible:
            listed = ", ".join(self._admissible)
            raise RunError(f"{action!r:.80} is not an admissible action: expected one of {listed}")
        key = self._admissible[action]
        reward, terminated, truncated = self._task.advance(key)
        self._paid |= self._can_succeed and reward > 0
        text, info = self._observe(key)
        if terminated or truncated:
            figures = self._task.figures()
            info["metrics"] = {name: float(figures[own]) for own, name in _METRICS.items()}
            self._task.quit()
        return text, reward, terminated, truncated, info

    def render(self) -> Any:
        return self._task.render()

    def close(self) -> None:
        self._task.close()

    def explore(self) -> int:
        """Return the index of the admissible action that an `Explorer` chooses; call this at every step of an episode.
        If the explorer's action is not admissible, the hero searches.
        """
        if self._explorer is None:
            self._explorer = Explorer()
        key = self._explorer.act(self._task.arrays)
        keys = [*self._admissible.values()]
        return next((keys.index(one) for one in (key, _OTHERS["search"]) if one in keys), 0)

    def _observe(self, key: int | None) -> tuple[str, dict[str, Any]]:
        """Describe the game after the task's action ``key``, or at the start of an episode if it is None."""
        task, message = self._task, self._read_message()
        is_over = task.end_status == EndStatus.DEATH  # nle has cleared its arrays
        if not is_over and task.arrays["inv_strs"].tobytes() != self._pack:
            self._read_inventory()
        stats = task.blstats
        place = (stats[nethack.NLE_BL_DNUM], stats[nethack.NLE_BL_DLEVEL], stats[1], stats[0])
        if task._map != self._map or place != self._place:
            self._look(place, key)
        on = _DOWN if task._internal[4] else self._phrases[self._below]
        sentences = [message] if message else []
        sentences.append(_status(*(stats[number] for number in _STATUS)))
        sentences += [f"You stand on {on}"] if on else []
        sentences += self._sights
        sentences += [self._inventory] if self._shows_inventory and self._inventory else []
        self._admissible = {} if is_over else self._find_actions(on)
        info = {"goal": self._goal, "descriptions": sentences, "actions": [*self._admissible], "success": self._paid}
        return "\n".join(sentences), info

    def _read_message(self) -> str:
        """Return the message without the shopkeeper's name, which depends on the clock."""
        text = message_text(self._task.message)
        if not text:
            return ""
        if (welcome := _SHOP.search(text)) is not None:
            self._shopkeeper = welcome[1]
        if self._shopkeeper is not None:
            text = text.replace(self._shopkeeper, "the shopkeeper")
        if self._task._internal[1]:
            text = text.partition(" [")[0]  # without the keys that answer a question
        return " ".join(text.split())

    def _read_inventory(self) -> None:
        arrays = self._task.arrays
        self._pack = arrays["inv_strs"].tobytes()
        letters, width = arrays["inv_letters"].tobytes().rstrip(b"\0"), arrays["inv_strs"].shape[1]
        self._items = {
            letter: self._pack[number * width : (number + 1) * width].split(b"\0", 1)[0].decode("latin-1")
            for number, letter in enumerate(letters)
        }
        self._has_food = nethack.FOOD_CLASS in arrays["inv_oclasses"].tobytes()
        self._inventory = f"You carry {', '.join(self._items.values())}" if self._items else ""

    def _look(self, place: tuple[int, ...], key: int | None) -> None:
        """Update what is seen, what is around the hero and what the hero stands on."""
        here = place[2] * _COLUMNS + place[3]
        if self._place and place != self._place:
            if place[:2] == self._place[:2]:
                below = int(np.frombuffer(self._map, dtype=np.int16)[here])
                self._below = -1 if self._properties[below] & MONSTER else below
            else:
                arrived = {_OTHERS["down"]: _UP, _OTHERS["up"]: _DOWN}.get(-1 if key is None else key)
                self._below = -1 if arrived is None else self._phrases.index(arrived)
        self._place, self._map = place, self._task._map
        glyphs = np.frombuffer(self._map + _BEYOND, dtype=np.int16)  # (21 · 79 + 80,)
        self._around: list[int] = self._properties[glyphs[here + _AROUND]].tolist()
        squares = self._seen.take(glyphs[: _ROW.size], mode="clip").nonzero()[0]
        rows, columns = _ROW[squares] - place[2], _COLUMN[squares] - place[3]
        distances = np.maximum(np.abs(rows), np.abs(columns))
        order = distances.argsort(kind="stable")
        if order.size and not distances[order[0]]:
            order = order[1:]  # the hero
        order = order[: self._most_seen]
        found = glyphs[squares[order]].tolist(), rows[order].tolist(), columns[order].tolist()
        self._sights = list(map(_sight, *found))

    def _find_actions(self, on: str) -> dict[str, int]:
        """Return the admissible actions with their keys; ``on`` is what the hero stands on."""
        task = self._task
        _, question, line, more = task._internal[:4].tolist()
        if question:
            return self._find_answers(task.message)
        if line or more:
            return {"continue": _CANCEL}
        stats, below = task.blstats, int(self._properties[self._below])
        is_blind = stats[nethack.NLE_BL_CONDITION] & nethack.BL_MASK_BLIND
        actions, can_kick = dict[str, int](), 0
        for (step, go, run, far, _, diagonal), around in zip(_MOVES, self._around, strict=True):
            can_kick |= around
            if (around & BLOCKED and not is_blind) or (diagonal and (around | below) & DOOR):
                continue
            actions[go] = step
            if not around & (MONSTER | DOOR):
                actions[far] = run
        actions |= {name: _OTHERS[name] for name in ("search", "wait")}
        if on.endswith(" down"):  # stairs or a ladder
            actions["go down"] = _OTHERS["down"]
        if on.endswith(" up") and self._place[:2] != _FIRST_LEVEL:
            actions["go up"] = _OTHERS["up"]
        if can_kick & KICKABLE:
            actions["kick"] = _OTHERS["kick"]
        if (self._has_food or below & FOOD) and stats[nethack.NLE_BL_HUNGER]:  # a satiated hero would choke
            actions["eat"] = _OTHERS["eat"]
        return actions

    def _find_answers(self, message: bytes) -> dict[str, int]:
        """Return the answers to the game's question, with their keys."""
        if b"direction?" in message:
            kicked = zip(_MOVES, self._around, strict=True)
            directions = {f"kick {move[4]}": move[0] for move, around in kicked if around & KICKABLE}
            return directions | {"cancel": _CANCEL}
        if b"What do you want to eat" in message:
            choice = EAT_CHOICES.search(message)
            item = None if choice is None else self._items.get(choice[1][0])
            return ({} if item is None else {f"eat {item}": _YES}) | {"cancel": _CANCEL}
        return {"yes": _YES, "no": _NO}


_STATUS = (
    *(nethack.NLE_BL_HP, nethack.NLE_BL_HPMAX, nethack.NLE_BL_GOLD, nethack.NLE_BL_XP, nethack.NLE_BL_DEPTH),
    *(nethack.NLE_BL_HUNGER, nethack.NLE_BL_CAP, nethack.NLE_BL_CONDITION),
)
_FIRST_LEVEL = (0, 1)  # dungeon and level; its stairs up leave the dungeon, which ends the game


@lru_cache(maxsize=4096)
def _status(hp: int, most: int, gold: int, level: int, depth: int, hunger: int, burden: int, condition: int) -> str:
    states = [_HUNGER[hunger], _BURDEN[burden], *(name for bit, name in _CONDITIONS.items() if condition & bit)]
    states = [state for state in states if state]
    text = f"You have {hp} of {most} hit points, {gold} gold and level {level} at depth {depth}"
    return f"{text}, and are {' and '.join(states)}" if states else text


@lru_cache(maxsize=1 << 16)
def _sight(glyph: int, rows: int, columns: int) -> str:
    """Describe a glyph and its position, as a number of steps and the nearest of eight directions."""
    steps = max(abs(rows), abs(columns))
    parts = [
        ("" if 2 * abs(offset) < steps else names[offset > 0])
        for offset, names in ((rows, ("north", "south")), (columns, ("west", "east")))
    ]
    return f"You see {glyph_tables().phrases[glyph]} {steps} step{'s' * (steps > 1)} {''.join(parts)}"


def make_words(
    goal: str,
    *,
    most_seen: int = 8,
    inventory: bool = True,
    character: str = "mon-hum-neu-mal",
    render_mode: str | None = None,
    **task: Any,
) -> NetHackWords:
    """Create a `NetHackWords` env from its own arguments, nle's ``character`` and the task's arguments."""
    if wrong := sorted(task.keys() - {"level", "continual", "sober"}):
        raise ConfigError(f"{wrong[0]} is not an argument of NetHack tasks with observations as text")
    made = make_goal(goal, observation_keys=_KEYS, character=character, render_mode=render_mode, **task)
    return NetHackWords(made, GOALS[goal].format(level=getattr(made.unwrapped, "level", None)), most_seen, inventory)
