"""GLAM's levels: five families of tasks in one room or two, with nouns held out for testing."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

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

from groundling.errors import ConfigError
from groundling.registry import unknown

Split = Literal["train", "test"]

HELD_OUT = ("yellow box", "red key", "red door", "green ball", "grey door")
"""What test missions speak of, and training missions never do; as distractors these occur in training too."""
_DOOR_COLOURS: dict[Split | None, tuple[str, ...]] = {
    "train": ("yellow", "green", "blue", "purple"),
    "test": ("red", "grey"),
    None: tuple(COLOR_NAMES),
}
_NOUN = re.compile(r"\w+ (?:key|ball|box|door)")
_KINDS = ("key", "ball", "box")
_MAKE: dict[str, Callable[[str], WorldObj]] = {"key": Key, "ball": Ball, "box": Box}
_ROOM_SIZE = 8


def _pick_up_then_go_to(a: ObjDesc, b: ObjDesc) -> Instr:
    return BeforeInstr(PickupInstr(a), GoToInstr(b))


def _go_to_after_pick_up(a: ObjDesc, b: ObjDesc) -> Instr:
    return AfterInstr(GoToInstr(b), PickupInstr(a))


def _pick_up_then_pick_up(a: ObjDesc, b: ObjDesc) -> Instr:
    return BeforeInstr(PickupInstr(a), PickupInstr(b))


def _pick_up_after_pick_up(a: ObjDesc, b: ObjDesc) -> Instr:
    return AfterInstr(PickupInstr(b), PickupInstr(a))


@dataclass(frozen=True)
class _Task:
    """A family of missions: how many objects it names, and the forms that it may take, equally likely."""

    num_named: int
    forms: tuple[Callable[..., Instr], ...]


_TASKS = {
    "goto": _Task(1, (GoToInstr,)),
    "pickup": _Task(1, (PickupInstr,)),
    "open": _Task(0, (OpenInstr,)),
    "putnext": _Task(2, (PutNextInstr,)),
    "pick up seq go to": _Task(2, (_pick_up_then_go_to, _go_to_after_pick_up)),
    "pick up then go to": _Task(2, (_pick_up_then_go_to,)),
    "go to after pick up": _Task(2, (_go_to_after_pick_up,)),
    "pick up seq pick up": _Task(2, (_pick_up_then_pick_up, _pick_up_after_pick_up)),
}
MIXED_TASKS = ("goto", "pickup", "open", "putnext", "pick up seq go to")


class LocalLevel(RoomGridLevel):
    """One room of 6 × 6 free cells with objects, or for ``open`` two of them with a locked door between.

    Args:
        tasks: The families that this level knows.
        split: Which missions it may give (see `HELD_OUT`); None: all.
        task: One of ``tasks``, fixed for the env's life; None draws one at each reset.
        draw_task: When a task is drawn: at each ``reset`` with the env's generator, or once at ``construction``
            with an unseeded one, as the original does: two envs of one seed then differ.
        generator: ``original`` draws whole levels and rejects them until one suits, with the original's stream of
            random numbers; ``direct`` gives the same distribution and rejects sets of objects before it builds.
        num_dists: Objects besides the ones that the task needs; 8 in GLAM.
        kwargs: See `minigrid.minigrid_env.MiniGridEnv`.

    The reward is Minigrid's, 1 - 0.9 · steps / max_steps at success and else 0, and max_steps is 64 for each
    object to go to and each room.

    Raises:
        ConfigError: an unknown task, generator or draw_task.
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
        if task is not None and task not in tasks:
            raise ConfigError(unknown("task", task, tasks))
        if draw_task not in ("reset", "construction"):
            raise ConfigError(unknown("value of draw_task", draw_task, ("reset", "construction")))
        if generator not in ("direct", "original"):
            raise ConfigError(unknown("generator", generator, ("direct", "original")))
        if task is None and draw_task == "construction":
            task = tasks[np.random.default_rng().integers(len(tasks))]
        self.tasks, self.split, self.task = tasks, split, task
        self.generator, self.num_dists = generator, num_dists
        super().__init__(room_size=_ROOM_SIZE, num_rows=1, num_cols=1, **kwargs)

    def _gen_grid(self, width: int, height: int) -> None:
        """Draw the task, then levels until one suits. (Minigrid's own loop prints each rejection.)"""
        name = self.task or self.tasks[self._rand_int(0, len(self.tasks))]
        self.current_task = name
        self.num_cols = 2 if name == "open" else 1
        self.width = (_ROOM_SIZE - 1) * self.num_cols + 1
        if self.generator == "original":
            # The original lays its rooms out once more before its first attempt. Where there are two of them,
            # this draws a place for their door.
            RoomGrid._gen_grid(self, self.width, self.height)
        while True:
            try:
                self.instrs = self._draw_level(name)
                self.validate_instrs(self.instrs)
                self.surface = self.instrs.surface(self)
                self._check_split(self.surface)
                break
            except (RejectSampling, RecursionError):
                continue
        self.mission = self.surface

    def _draw_level(self, name: str) -> Instr:
        task = _TASKS[name]
        if name == "open":
            return self._draw_two_rooms()
        if self.generator == "original":
            return self._draw_room_as_the_original(task)
        return self._draw_room(task)

    def _draw_room(self, task: _Task) -> Instr:
        """Objects and mission first, until the split admits them; the room after that.

        What stands where does not depend on what it is, so to reject an unsuitable mission before the room is
        built changes no probability. What depends on both (unreachable things; neighbours that are to be put
        next to each other) rejects all together.
        """
        while True:
            codes = self.np_random.integers(
                0, len(_KINDS) * len(COLOR_NAMES), self.num_dists + task.num_named
            )
            descriptions = [(_KINDS[c % len(_KINDS)], COLOR_NAMES[c // len(_KINDS)]) for c in codes.tolist()]
            named = self._draw_named(descriptions, task.num_named)
            if all(self._admits(f"{colour} {kind}") for kind, colour in named):
                break
        RoomGrid._gen_grid(self, self.width, self.height)
        self.place_agent()
        for kind, colour in descriptions:
            self.place_in_room(0, 0, _MAKE[kind](colour))
        self.check_objs_reachable()
        return self._draw_form(task)(*(ObjDesc(kind, colour) for kind, colour in named))

    def _draw_room_as_the_original(self, task: _Task) -> Instr:
        RoomGrid._gen_grid(self, self.width, self.height)
        self.place_agent()
        objects = self.add_distractors(num_distractors=self.num_dists + task.num_named, all_unique=False)
        named = self._draw_named([(o.type, o.color) for o in objects], task.num_named)
        form = self._draw_form(task)
        self.check_objs_reachable()
        return form(*(ObjDesc(kind, colour) for kind, colour in named))

    def _draw_named(self, descriptions: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
        """The objects that the mission names: never the same one twice, unless another looks like it."""
        first = self._rand_int(0, len(descriptions))
        if count == 1:
            return [descriptions[first]]
        second = self._rand_int(0, len(descriptions))
        while second == first and descriptions.count(descriptions[first]) == 1:
            second = self._rand_int(0, len(descriptions))
        return [descriptions[first], descriptions[second]]

    def _draw_form(self, task: _Task) -> Callable[..., Instr]:
        return task.forms[self._rand_int(0, len(task.forms)) if len(task.forms) > 1 else 0]

    def _draw_two_rooms(self) -> Instr:
        """A locked door between two rooms; its key, the other objects and the agent in the same one of them."""
        RoomGrid._gen_grid(self, self.width, self.height)
        colour = self._rand_elem(_DOOR_COLOURS[self.split])
        locked_room, key_room = self._add_locked_room(colour)
        self.add_distractors(key_room, 0, num_distractors=self.num_dists, all_unique=False)
        while self.room_from_pos(*self.place_agent()) is locked_room:
            pass
        told = self.split != "train" or not self._rand_bool()
        self.check_objs_reachable()
        return OpenInstr(ObjDesc("door", colour if told else None))

    def _add_locked_room(self, colour: str) -> tuple[Any, int]:
        """Lock one of the rooms, and put the key into the other; the room, and the other's column."""
        while True:
            column, row, side = self._rand_int(0, self.num_cols), self._rand_int(0, 1), self._rand_int(0, 4)
            if self.get_room(column, row).neighbors[side] is not None:
                break
        self.add_door(column, row, side, colour, locked=True)
        while (key_column := self._rand_int(0, self.num_cols)) == column:
            pass
        self.add_object(key_column, 0, "key", colour)
        return self.get_room(column, row), key_column

    def _admits(self, noun: str) -> bool:
        """Whether the split lets a mission speak of ``noun`` ("red key")."""
        return self.split is None or (noun in HELD_OUT) == (self.split == "test")

    def _check_split(self, mission: str) -> None:
        if not all(self._admits(noun) for noun in _NOUN.findall(mission) if noun != "the door"):
            raise RejectSampling(f"not a mission of the {self.split} split: {mission}")
