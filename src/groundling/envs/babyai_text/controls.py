"""Controls: changed missions, to test if an agent follows its mission; the env's mission and reward stay the same."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from minigrid.core.world_object import WorldObj

from groundling.envs.babyai_text.grounding import Asked, descriptions
from groundling.envs.babyai_text.missions import change_things

CONTROLS = {
    "swapped": "the mission names another thing in the room; an agent that reads it goes to that thing, and fails",
    "dropped": "the mission does not say which thing it means",
    "scrambled": "the letters of the words that name things are shuffled",
}


def swap(env: Any, asked: list[Asked], mission: str, rng: np.random.Generator) -> tuple[str, list[Asked]] | None:
    """Name another thing instead of each to interact with first: within reach, not described by the mission, and
    unique if possible. Return the mission and its first interactions; None without such a thing, as behind one locked
    door. ``env`` is unwrapped and at the start of an episode; ``asked`` is of `grounding.asked_first`.
    """
    described = descriptions(env.instrs)
    meant = {_look(thing) for description in described for thing in description.obj_set}
    present = [thing for thing in env.grid.grid if thing is not None]
    counts = Counter(map(_look, present))
    words: dict[int, str] = {}
    swapped: list[Asked] = []
    for part in asked:
        others = sorted({_look(thing) for thing in part.things} - meant)
        single = [look for look in others if counts[look] == 1]
        if not others or not part.is_described:
            return None
        look = (single or others)[int(rng.integers(len(single or others)))]
        meant.add(look)
        place = next(i for i, description in enumerate(described) if description is part.description)
        words[place] = f"{'the' if counts[look] == 1 else 'a'} {' '.join(look)}"
        swapped.append(replace(part, named=[thing for thing in present if _look(thing) == look]))
    places = iter(range(len(described)))
    new_mission, phrases = change_things(mission, lambda phrase: words.get(next(places, -1), phrase))
    return (new_mission, swapped) if swapped and len(phrases) == len(described) else None


def drop(mission: str, language: str) -> tuple[str, list[str]]:
    """Remove the phrases for things: ``pick up the red key`` becomes ``pick up``. Returns as `change_things`."""
    return change_things(mission, lambda phrase: "", language)


def scramble(mission: str, language: str, rng: np.random.Generator) -> tuple[str, list[str]]:
    """Shuffle the letters of each word that describes a thing; the result differs. Returns as `change_things`."""

    def mixed(match: re.Match[str]) -> str:
        word = letters = match[0]
        while letters == word:
            letters = "".join(rng.permutation(list(word)).tolist())
        return letters

    def change(phrase: str) -> str:
        article, described = re.fullmatch(r"(\w+\W)(.*)", phrase).groups()  # type: ignore[union-attr]
        return article + re.sub(r"\w{2,}", mixed, described)

    return change_things(mission, change, language)


def _look(thing: WorldObj) -> tuple[str, str]:
    return thing.color, thing.type
