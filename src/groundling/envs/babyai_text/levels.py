"""GLAM's levels: five task families in one or two rooms, with nouns held out for testing."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from minigrid.core.constants import COLOR_NAMES
from minigrid.core.roomgrid import RoomGrid
from minigrid.core.world_object import Ball, Box, Key, WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)
from minigrid.utils.baby_ai_bot import BabyAIBot

from groundling.envs.babyai_text.direct import MOST_THINGS, NOUNS, Places, draw_nouns, draw_places, draw_places_by_door
from groundling.envs.bundled import MIXED_TASKS
from groundling.errors import ConfigError, RunError, unknown

Split = Literal["train", "test"]

HELD_OUT = ("yellow box", "red key", "red door", "green ball", "grey door")
"""Objects that are named only in test missions; in training they occur only as distractors."""
_DOOR_COLOURS: dict[Split | None, tuple[str, ...]] = {
    "train": ("yellow", "green", "blue", "purple"),
    "test": ("red", "grey"),
    None: tuple(COLOR_NAMES),
}
_MAKE: dict[str, Callable[[str], WorldObj]] = {"key": Key, "ball": Ball, "box": Box}
_ROOM_SIZE = 8
_RIGHT, _LEFT = 0, 2  # Minigrid's indices of a room's sides


_Task = tuple[int, tuple[Callable[..., Instr], ...]]  # number of named objects, mission templates
_PICK_UP_THEN_GO_TO: Callable[..., Instr] = lambda a, b: BeforeInstr(PickupInstr(a), GoToInstr(b))  # noqa: E731
_GO_TO_AFTER_PICK_UP: Callable[..., Instr] = lambda a, b: AfterInstr(GoToInstr(b), PickupInstr(a))  # noqa: E731
_TASKS: dict[str, _Task] = {
    "goto": (1, (GoToInstr,)),
    "pickup": (1, (PickupInstr,)),
    "open": (0, (OpenInstr,)),
    "putnext": (2, (PutNextInstr,)),
    "pick up seq go to": (2, (_PICK_UP_THEN_GO_TO, _GO_TO_AFTER_PICK_UP)),
    "pick up then go to": (2, (_PICK_UP_THEN_GO_TO,)),
    "go to after pick up": (2, (_GO_TO_AFTER_PICK_UP,)),
    "pick up seq pick up": (
        2,
        (
            lambda a, b: BeforeInstr(PickupInstr(a), PickupInstr(b)),
            lambda a, b: AfterInstr(PickupInstr(b), PickupInstr(a)),
        ),
    ),
}


class LocalLevel(RoomGridLevel):
    """One room of 6 × 6 free cells with objects or, for ``open``, two rooms with a locked door between them.

    The reward is Minigrid's: 1 - 0.9 · steps / max_steps on success, otherwise 0. By default, ``max_steps`` is 64
    times the number of objects to go to, times the number of rooms.

    Args:
        tasks: Task families.
        split: Split of the missions (see `HELD_OUT`); if None, all missions are used.
        task: One of ``tasks``, fixed for the env's lifetime; if None, one is sampled at each reset.
        draw_task: When to sample a task: at each ``reset``, or once at ``construction`` with an unseeded generator, as
            in the original; envs with the same seed then differ. `groundling evaluate` always uses ``reset``.
        generator: ``original`` samples whole levels until one is valid, and reproduces the original levels for a seed;
            ``direct`` samples from the same distribution, but builds only one level.
        num_dists: Number of distractors (objects that the task does not need), 0 to 14; 8 in GLAM.
        kwargs: See `minigrid.minigrid_env.MiniGridEnv`.
    """

    def __init__(
        self,
        tasks: tuple[str, ...] = MIXED_TASKS,
        split: Split | None = None,
        task: str | None = None,
        draw_task: Literal["reset", "construction"] = "reset",
        generator: Literal["direct", "original"] = "direct",
        num_dists: int = 8,
        **kwargs: Any,
    ) -> None:
        if isinstance(tasks, str) or not tasks:
            raise ConfigError(f"tasks is {tasks!r}: expected a list with at least one of {', '.join(_TASKS)}")
        choices: list[tuple[str, Any, Iterable[str]]] = [
            *(("task", name, _TASKS) for name in tasks),
            ("task", task, tasks),
            ("value of draw_task", draw_task, ("reset", "construction")),
            ("generator", generator, ("direct", "original")),
            ("split", split, ("train", "test")),
        ]
        for what, value, known in choices:
            if value not in known and not (value is None and what in ("task", "split")):
                raise ConfigError(unknown(what, str(value), known))
        if not isinstance(num_dists, int) or not 0 <= num_dists <= MOST_THINGS - 2:
            raise ConfigError(f"num_dists is {num_dists}: expected an integer from 0 to {MOST_THINGS - 2} (8 in GLAM)")
        if task is None and draw_task == "construction":
            task = tasks[np.random.default_rng().integers(len(tasks))]
        self.tasks, self.split, self.task = tasks, split, task
        self.generator, self.num_dists = generator, num_dists
        self._admitted = [
            i
            for i, (kind, colour) in enumerate(NOUNS)
            if split is None or (f"{colour} {kind}" in HELD_OUT) == (split == "test")
        ]
        super().__init__(room_size=_ROOM_SIZE, num_rows=1, num_cols=1, **kwargs)

    def _gen_grid(self, width: int, height: int) -> None:
        """Sample the task and its level. (Minigrid's own loop would print each rejection.)"""
        name = self.task or self.tasks[self._rand_int(0, len(self.tasks))]
        self.current_task = name
        self.num_cols = 2 if name == "open" else 1
        self.width = (_ROOM_SIZE - 1) * self.num_cols + 1
        if self.generator == "original":
            self.instrs = self._draw_as_the_original(name)
        else:
            self.instrs = self._draw_two_rooms() if name == "open" else self._draw_room(name)
        self.surface = self.mission = self.instrs.surface(self)

    # Direct generator

    def _draw_room(self, name: str) -> Instr:
        num_named, forms = _TASKS[name]
        count = self.num_dists + num_named
        while True:
            nouns = draw_nouns(self.np_random, count, num_named, self._admitted)
            places = draw_places(self.np_random, count)
            if name != "putnext":
                break
            moved, fixed = ([i for i, noun in enumerate(nouns) if noun == named] for named in nouns[:2])
            if nouns[0] != nouns[1] and not places.touching(moved, fixed):  # the mission is not already fulfilled
                break
        RoomGrid._gen_grid(self, self.width, self.height)
        self._furnish(0, [NOUNS[noun] for noun in nouns], places)
        form = self._rand_elem(forms) if len(forms) > 1 else forms[0]
        return form(*(ObjDesc(*NOUNS[noun]) for noun in nouns[:num_named]))

    def _draw_two_rooms(self) -> Instr:
        """Build two rooms with a locked door between them; one room has the key, the other objects and the agent."""
        colour = self._rand_elem(_DOOR_COLOURS[self.split])
        column, row, places = draw_places_by_door(self.np_random, 1 + self.num_dists)
        RoomGrid._gen_grid(self, self.width, self.height)
        left, right = self.room_grid[0]
        left.door_pos[_RIGHT] = right.door_pos[_LEFT] = (_ROOM_SIZE - 1, row)
        self.add_door(1 - column, 0, _LEFT if column == 0 else _RIGHT, colour, locked=True)
        others = [NOUNS[noun] for noun in self.np_random.integers(len(NOUNS), size=self.num_dists).tolist()]
        self._furnish(column, [("key", colour), *others], places)
        return self._draw_opening(colour)

    def _furnish(self, column: int, things: list[tuple[str, str]], places: Places) -> None:
        room = self.get_room(column, 0)
        for (kind, colour), (x, y) in zip(things, places.things, strict=True):
            thing = _MAKE[kind](colour)
            self.put_obj(thing, room.top[0] + x, y)
            room.objs.append(thing)
        self.agent_pos = (room.top[0] + places.agent[0], places.agent[1])
        self.agent_dir = places.direction

    # Original generator: to reproduce its levels, random numbers must be drawn in exactly this order

    def _draw_as_the_original(self, name: str) -> Instr:
        # As in the original, an extra grid is built first; with two rooms, this samples a position for the door.
        RoomGrid._gen_grid(self, self.width, self.height)
        while True:
            RoomGrid._gen_grid(self, self.width, self.height)
            try:
                instruction = self._attempt_two_rooms() if name == "open" else self._attempt_room(*_TASKS[name])
                self.validate_instrs(instruction)
                return instruction
            except (RejectSampling, RecursionError):
                continue

    def _attempt_room(self, num_named: int, forms: Sequence[Callable[..., Instr]]) -> Instr:
        self.place_agent()
        objects = self.add_distractors(num_distractors=self.num_dists + num_named, all_unique=False)
        nouns = [(o.type, o.color) for o in objects]
        first = self._rand_int(0, len(nouns))
        named = [nouns[first]]
        if num_named == 2:  # not the same object twice, unless another one looks the same
            second = self._rand_int(0, len(nouns))
            while second == first and nouns.count(nouns[first]) == 1:
                second = self._rand_int(0, len(nouns))
            named.append(nouns[second])
        form = self._rand_elem(forms) if len(forms) > 1 else forms[0]
        if not all(NOUNS.index(noun) in self._admitted for noun in named):
            raise RejectSampling(f"not in the {self.split} split")
        self.check_objs_reachable()
        return form(*(ObjDesc(*noun) for noun in named))

    def _attempt_two_rooms(self) -> Instr:
        """Lock one of the rooms, and put the key and the agent in the other."""
        colour = self._rand_elem(_DOOR_COLOURS[self.split])
        while True:
            column, row, side = self._rand_int(0, self.num_cols), self._rand_int(0, 1), self._rand_int(0, 4)
            if self.get_room(column, row).neighbors[side] is not None:
                break
        self.add_door(column, row, side, colour, locked=True)
        while (key_column := self._rand_int(0, self.num_cols)) == column:
            pass
        self.add_object(key_column, 0, "key", colour)
        self.add_distractors(key_column, 0, num_distractors=self.num_dists, all_unique=False)
        while self.room_from_pos(*self.place_agent()) is self.get_room(column, row):
            pass
        instruction = self._draw_opening(colour)
        self.check_objs_reachable()
        return instruction

    # Both generators

    def _draw_opening(self, colour: str) -> Instr:
        """Sample a mission to open the door; half of the training missions omit its colour."""
        names_colour = self.split != "train" or not self._rand_bool()
        return OpenInstr(ObjDesc("door", colour if names_colour else None))


class ExpertError(RunError):
    """The expert does not support this env, or was called before the env's first reset."""


class Expert:
    """Plays episodes of a BabyAI env with minigrid's ``BabyAIBot`` (Hui et al. 2020, arXiv 2007.12770).

    Args:
        env: A BabyAI env, wrapped or not.

    Raises:
        ExpertError: The env is not a BabyAI env.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env: Any = env.unwrapped
        if not hasattr(self._env, "validate_instrs"):
            raise ExpertError(f"the expert is BabyAI's bot, but {self._env} is not a BabyAI env")
        self._instructions: Any = None  # the current episode's
        self._bot: Any = None

    def act(self) -> int:
        """Return the index of the next action. Until that action is taken, further calls return the same index."""
        if not hasattr(self._env, "instrs"):
            raise ExpertError("the expert was called before the env's first reset: call env.reset() first")
        if self._instructions is not self._env.instrs:
            self._instructions, self._bot = self._env.instrs, BabyAIBot(self._env)
            self._asked_at, self._advised = -1, None
        if self._asked_at != self._env.step_count:
            self._advised, self._asked_at = self._bot.replan(self._advised), self._env.step_count
        return int(self._advised)  # type: ignore[arg-type]
