"""Descriptions of the agent's view in sentences, by the original's rules (GLAM, arXiv 2302.02662, section 3.1)."""

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, OBJECT_TO_IDX, STATE_TO_IDX
from numpy.typing import ArrayLike

from groundling.envs.languages import FRENCH_COLOURS, FRENCH_NOUNS, FRENCH_STATES, Language, check_language

_UNSEEN, _EMPTY, _WALL = OBJECT_TO_IDX["unseen"], OBJECT_TO_IDX["empty"], OBJECT_TO_IDX["wall"]
_PASSED = bytes((_UNSEEN, _EMPTY))  # what does not end a ray
_FIRST_THING = 1 + max(_UNSEEN, _EMPTY, _WALL)  # floor, door, key, ball, box, goal, lava
_STATES = {index: name for name, index in STATE_TO_IDX.items()}


def describe(
    image: ArrayLike,
    carrying: Any = None,
    language: str = "english",
    compat: Literal["glam"] | None = None,
    walls: bool = True,
) -> list[str]:
    """Describe an egocentric view in sentences.

    The carried object comes first; then the walls straight ahead, left and right, unless something is in front of
    them; then everything else in view, column by column from the left, far before near.

    Args:
        image: Uint8 ``(width, height, 3)``, Minigrid's symbolic view (7 × 7 by default): column, row, then object,
            colour and state; the agent is in the middle of the last row.
        carrying: The carried object: a Minigrid ``WorldObj``, a pair (type, colour), or None.
        language: ``english`` or ``french``.
        compat: ``glam`` leaves the carried object in English inside the French sentence, as the original does.
        walls: Include the sentences about walls, about half of a room's.

    Returns:
        The sentences, such as ``You see a red ball 2 steps left and 1 step forward``.

    Raises:
        TranslationError: An unknown language.
        ValueError: The image is not a symbolic view.
    """
    spoken = check_language(language)
    view = np.asarray(image)
    if view.ndim != 3 or view.shape[2] != 3:
        raise ValueError(f"the image has shape {view.shape}: expected (width, height, 3), Minigrid's symbolic view")
    width, height = view.shape[:2]
    codes = view.reshape(-1).tolist()  # cell by cell, column-major: object, colour, state
    kinds = bytes(codes[::3])
    agent_cell = (width // 2) * height + height - 1
    sentences = [] if carrying is None else [_carried(carrying, spoken, compat)]
    if walls:
        sentences += _walls(kinds, height, agent_cell, spoken)
    for cell, kind in enumerate(kinds):
        if kind >= _FIRST_THING and cell != agent_cell:
            right, ahead = cell // height - width // 2, height - 1 - cell % height
            sentences.append(_thing(kind, codes[3 * cell + 1], codes[3 * cell + 2], right, ahead, spoken))
    return sentences


def _walls(kinds: bytes, height: int, agent_cell: int, language: Language) -> list[str]:
    """Describe the walls on the three rays, unless something else comes first; unseen cells do not end a ray."""
    rays = (
        ("forward", kinds[agent_cell - height + 1 : agent_cell][::-1]),
        ("left", kinds[height - 1 : agent_cell : height][::-1]),
        ("right", kinds[agent_cell + height :: height]),
    )
    sentences = []
    for direction, ray in rays:
        met = ray.lstrip(_PASSED)
        if met and met[0] == _WALL:
            sentences.append(_wall(len(ray) - len(met) + 1, direction, language))
    return sentences


def _carried(carrying: Any, language: Language, compat: str | None) -> str:
    kind, colour = carrying if isinstance(carrying, list | tuple) else (carrying.type, carrying.color)
    if language == "english":
        return f"You carry a {colour} {kind}"
    if compat == "glam":
        return f"Tu portes une {kind} {colour}"
    return f"Tu portes une {FRENCH_NOUNS[kind]} {FRENCH_COLOURS[colour]}"


@lru_cache(maxsize=4096)
def _wall(distance: int, direction: str, language: Language) -> str:
    if language == "english":
        return f"You see a wall {_steps(distance)} {direction}"
    french = {"forward": "devant", "left": "à gauche", "right": "à droite"}[direction]
    return f"Tu vois un mur à {distance} pas {french}"


@lru_cache(maxsize=65536)
def _thing(kind: int, colour: int, state: int, right: int, ahead: int, language: Language) -> str:
    """Describe one thing; "a open door" and "une but" are the original's."""
    noun, adjective = IDX_TO_OBJECT[kind], IDX_TO_COLOR[colour]
    condition = _STATES[state] if noun == "door" else None
    if language == "english":
        words = [condition, adjective, noun] if condition else [adjective, noun]
        return f"You see a {' '.join(words)} {_position(right, ahead, language)}"
    words = [FRENCH_NOUNS[noun], FRENCH_COLOURS[adjective], *([FRENCH_STATES[condition]] if condition else [])]
    return f"Tu vois une {' '.join(words)} {_position(right, ahead, language)}"


def _position(right: int, ahead: int, language: Language) -> str:
    if language == "english":
        sideways = f"{_steps(abs(right))} {'right' if right > 0 else 'left'}"
        forward, joint = f"{_steps(ahead)} forward", " and "
    else:
        sideways = f"{abs(right)} pas à {'droite' if right > 0 else 'gauche'}"
        forward, joint = f"{ahead} pas devant", " et "
    return joint.join([sideways] * (right != 0) + [forward] * (ahead != 0))


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"
