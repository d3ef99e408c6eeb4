"""The agent's first interaction in a BabyAI episode, and the first interaction that the mission requires.

The mission determines what counts as an interaction:

- pick up, and put next to: the thing is picked up;
- go to: the agent faces the thing from an adjacent cell;
- open: the door is toggled or, if it is locked, a key is picked up (the named keys are those of the door's colour);
- sequences: the part that must be done first counts; if two parts are joined by "and", either of them counts.

The *things* are the objects that the agent can reach at the start without first moving a thing, unlocking a door, or
interacting with another thing. Doors count as things only in missions to open or go to a door; in other missions, the
agent may pass through them.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from minigrid.core.actions import Actions
from minigrid.core.world_object import WorldObj
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    AndInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
    SeqInstr,
)

from groundling.envs.babyai_text.direct import spread
from groundling.envs.babyai_text.missions import change_things

Deed = Literal["pick up", "face", "toggle"]
_MOVABLE = ("key", "ball", "box")
_ACTIONS: dict[Deed, tuple[Actions, ...]] = {
    "pick up": (Actions.pickup,),
    "face": (Actions.left, Actions.right, Actions.forward),
    "toggle": (Actions.toggle,),
}
_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # in the order of Minigrid's directions


@dataclass(frozen=True)
class Asked:
    """The first interaction that a mission requires."""

    deed: Deed
    description: ObjDesc  # the part of the mission that describes the thing
    named: Collection[WorldObj]  # the things that the mission refers to, whether within reach or not
    things: Collection[WorldObj]  # the things within reach


def asked_first(env: Any, instruction: Instr | None) -> list[Asked]:
    """Return the first interaction (or two alternatives) that the instruction of an unwrapped BabyAI env requires. The
    list is empty if the grammar is not BabyAI's, the agent carries something, or no named thing is within reach.
    """
    if env.carrying is not None:
        return []
    if isinstance(instruction, AndInstr):
        one, other = asked_first(env, instruction.instr_a), asked_first(env, instruction.instr_b)
        return [*one, *other] if one and other else []
    if isinstance(instruction, SeqInstr):
        is_after = isinstance(instruction, AfterInstr)
        return asked_first(env, instruction.instr_b if is_after else instruction.instr_a)
    if isinstance(instruction, GoToInstr):
        description = instruction.desc
        doors = description.type in (None, "door")  # otherwise the agent can pass through doors
        return _within_reach("face", description, description.obj_set, _reach(env, doors), doors)
    if isinstance(instruction, PickupInstr | PutNextInstr):
        description = instruction.desc if isinstance(instruction, PickupInstr) else instruction.desc_move
        return _within_reach("pick up", description, description.obj_set, _reach(env))
    if not isinstance(instruction, OpenInstr):
        return []
    description = instruction.desc
    unlocked: list[Any] = [door for door in description.obj_set if not door.is_locked]
    doors_in_reach = [thing for thing in _reach(env, doors_block=True) if thing.type == "door"] if unlocked else []
    if _among(doors_in_reach, unlocked):
        return [Asked("toggle", description, description.obj_set, doors_in_reach)]
    reach = _reach(env)
    locked = {door.color for door in _among(reach, description.obj_set) if door.is_locked}
    keys = [thing for thing in env.grid.grid if thing is not None and thing.type == "key" and thing.color in locked]
    return _within_reach("pick up", description, keys, reach)


def _within_reach(
    deed: Deed, description: ObjDesc, named: Collection[WorldObj], reach: Iterable[WorldObj], doors: bool = False
) -> list[Asked]:
    things = [thing for thing in reach if doors or thing.type != "door"]
    return [Asked(deed, description, named, things)] if _among(things, named) else []


def _among(things: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    known = {id(other) for other in others}
    return [thing for thing in things if id(thing) in known]


def _reach(env: Any, doors_block: bool = False) -> list[WorldObj]:
    """Return the keys, balls, boxes and doors within the agent's reach; walls or doors must enclose all rooms."""
    cells, width = env.grid.grid, env.grid.width
    free = int("".join(["1" if cell is None else "0" for cell in reversed(cells)]), 2)  # one bit per cell
    things = []
    for place, thing in enumerate(cells):
        if thing is None or thing.type == "wall":
            continue
        if thing.type == "door" or thing.type in _MOVABLE:
            things.append((1 << place, thing))
        if thing.can_overlap() or (thing.type == "door" and not doors_block and not thing.is_locked):
            free |= 1 << place
    x, y = env.agent_pos
    before, reached = 0, 1 << int(x) + int(y) * width
    free |= reached
    while reached != before:
        before = reached
        reached = spread(reached, width) & free
    adjacent = spread(reached, width)
    return [thing for bit, thing in things if bit & adjacent]


def descriptions(instruction: Instr) -> list[ObjDesc]:
    """Return an instruction's object descriptions in the order in which the mission mentions them."""
    if isinstance(instruction, SeqInstr):
        return descriptions(instruction.instr_a) + descriptions(instruction.instr_b)
    names = ("desc", "desc_move", "desc_fixed")
    return [getattr(instruction, name) for name in names if hasattr(instruction, name)]


class InteractionTracker:
    """Tracks the first interaction in an unwrapped BabyAI env; ``named`` lists the mission's phrases for things."""

    def __init__(self, env: Any, asked: list[Asked], named: Iterable[str] = ()) -> None:
        self._env = env
        self.actions = frozenset(action for part in asked for action in _ACTIONS[part.deed])
        """Actions after which to call `update`; empty after the first interaction."""
        self._named = [thing for part in asked for thing in part.named]
        things = {id(thing): thing for part in asked for thing in part.things}.values()
        self._kinds = {*_MOVABLE, *(thing.type for thing in things)}
        chance = len(_among(things, self._named)) / len(things)
        self.interaction: dict[str, Any] = {"target": "none", "chance": chance, "named": tuple(named)}
        """Value of ``info["first_interaction"]`` (see `groundling.envs.text_episode`)."""

    def update(self, action: int) -> None:
        """Check whether the env's last step, with ``action``, was an interaction."""
        env = self._env
        thing = env.carrying
        if action != Actions.pickup:
            (x, y), (dx, dy) = env.agent_pos, _AHEAD[env.agent_dir]
            thing = env.grid.grid[(y + dy) * env.grid.width + x + dx]
            if thing is not None and thing.type not in (("door",) if action == Actions.toggle else self._kinds):
                return
        if thing is not None:
            self.actions = frozenset()
            self.interaction = self.interaction | {
                "target": "named" if _among([thing], self._named) else "other",
                "thing": f"{thing.color} {thing.type}",
                "step": int(env.step_count),
            }


CONTROLS = {
    "swapped": "the mission names a different thing in the room; an agent that reads it goes to that thing and fails",
    "dropped": "the mission does not specify a thing",
    "scrambled": "the letters of the words that describe things are shuffled",
}


def swap(env: Any, asked: list[Asked], mission: str, rng: np.random.Generator) -> tuple[str, list[Asked]] | None:
    """Change the mission so that the agent must first interact with other things, which are within reach, are not
    described by the original mission, and are unique if possible. Return the new mission and its first interactions,
    or None if there are no such things. ``env`` must be unwrapped and at the start of an episode; ``asked`` is the
    result of `asked_first`.
    """

    def look_of(thing: Any) -> tuple[str, str]:
        return thing.color, thing.type

    described = descriptions(env.instrs)
    meant = {look_of(thing) for description in described for thing in description.obj_set}
    present = [thing for thing in env.grid.grid if thing is not None]
    counts = Counter(map(look_of, present))
    words: dict[int, str] = {}
    swapped: list[Asked] = []
    for part in asked:
        others = sorted({look_of(thing) for thing in part.things} - meant)
        single = [look for look in others if counts[look] == 1]
        if not others or (part.deed == "pick up" and part.description.type == "door"):  # the mission mentions no key
            return None
        look = (single or others)[int(rng.integers(len(single or others)))]
        meant.add(look)
        place = next(i for i, description in enumerate(described) if description is part.description)
        words[place] = f"{'the' if counts[look] == 1 else 'a'} {' '.join(look)}"
        swapped.append(replace(part, named=[thing for thing in present if look_of(thing) == look]))
    places = iter(range(len(described)))
    new_mission, phrases = change_things(mission, lambda phrase: words.get(next(places, -1), phrase))
    return (new_mission, swapped) if swapped and len(phrases) == len(described) else None


def scramble(phrase: str, rng: np.random.Generator) -> str:
    """Shuffle the letters of each word after the article in a phrase such as ``the red key``; each word changes."""

    def mixed(match: re.Match[str]) -> str:
        word = letters = match[0]
        while letters == word:
            letters = "".join(rng.permutation(list(word)).tolist())
        return letters

    article, described = re.fullmatch(r"(\w+\W)(.*)", phrase).groups()  # type: ignore[union-attr]
    return article + re.sub(r"\w{2,}", mixed, described)
