"""Names and properties of NetHack's glyphs, in tables that are computed once from nle's data.

Objects whose appearance differs between games, such as potions, are named by their class only: their glyph is that of
the true object, which the hero may not know.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from nle import nethack

BLOCKED, DOOR, MONSTER, FOOD, KICKABLE = 1, 2, 4, 8, 16
"""Properties of a square's glyph, as bits. BLOCKED: entering the square is impossible or deadly. DOOR: it cannot be
entered or left diagonally. FOOD: the hero may eat it when standing on it. KICKABLE: a kick may have an effect."""

_BLOCKED = {"wall", "iron bars", "tree", "raised drawbridge", "water", "molten lava"}
_UNREMARKABLE = _BLOCKED | {
    *("", "dark part of a room", "floor of a room", "corridor", "lit corridor"),
    *("ice", "air", "cloud", "poison cloud", "lowered drawbridge", "valid position"),
}  # not described
_CLASSES = {
    nethack.RING_CLASS: "a ring",
    nethack.AMULET_CLASS: "an amulet",
    nethack.POTION_CLASS: "a potion",
    nethack.SCROLL_CLASS: "a scroll",
    nethack.SPBOOK_CLASS: "a spellbook",
    nethack.WAND_CLASS: "a wand",
    nethack.VENOM_CLASS: "some venom",
}
_SHUFFLED_ARMOUR = {
    "helmet": "a helmet",
    "gloves": "some gloves",
    "boots": "some boots",
}  # by an appearance's last word
_SHUFFLED_CLOAKS = ("tattered cape", "opera cloak", "ornamental cope", "piece of cloth")
_PLURALS = ("gloves", "boots", "shoes", "scales", "lenses", "jackboots", "pieces")


class GlyphTables(NamedTuple):
    phrases: tuple[str, ...]  # a noun with its article for each glyph; empty for glyphs that are not described
    seen: np.ndarray  # bool ``(MAX_GLYPH + 1,)``: True for glyphs with a phrase
    properties: np.ndarray  # uint8 ``(MAX_GLYPH + 1,)``


@cache
def glyph_tables() -> GlyphTables:
    phrases = [""] * (nethack.MAX_GLYPH + 1)  # the last glyph is NO_GLYPH
    properties = np.zeros(len(phrases), dtype=np.uint8)
    for monster in range(nethack.GLYPH_PET_OFF - nethack.GLYPH_MON_OFF):
        name = nethack.permonst(monster).mname
        for start, phrase in (
            (nethack.GLYPH_MON_OFF, _with_article(name)),
            (nethack.GLYPH_PET_OFF, f"a tame {name}"),
            (nethack.GLYPH_DETECT_OFF, _with_article(name)),
        ):
            phrases[start + monster], properties[start + monster] = phrase, MONSTER | KICKABLE
        phrases[nethack.GLYPH_BODY_OFF + monster] = f"{_with_article(name)} corpse"
        properties[nethack.GLYPH_BODY_OFF + monster] = FOOD | KICKABLE
        phrases[nethack.GLYPH_STATUE_OFF + monster] = f"a statue of {_with_article(name)}"
    phrases[nethack.GLYPH_INVIS_OFF], properties[nethack.GLYPH_INVIS_OFF] = "an unseen monster", MONSTER | KICKABLE
    for glyph in range(nethack.GLYPH_WARNING_OFF, nethack.GLYPH_STATUE_OFF):
        phrases[glyph], properties[glyph] = "a sensed monster", MONSTER | KICKABLE
    for number in range(nethack.GLYPH_CMAP_OFF - nethack.GLYPH_OBJ_OFF):
        glyph = nethack.GLYPH_OBJ_OFF + number
        phrases[glyph] = _object(number)
        is_food = ord(nethack.objclass(number).oc_class) == nethack.FOOD_CLASS
        properties[glyph] = KICKABLE | FOOD * is_food
    for number in range(nethack.GLYPH_EXPLODE_OFF - nethack.GLYPH_CMAP_OFF):
        glyph, name = nethack.GLYPH_CMAP_OFF + number, nethack.symdef.from_idx(number).explanation
        phrases[glyph] = "" if name in _UNREMARKABLE else _with_article(name)
        properties[glyph] = BLOCKED * (name in _BLOCKED or number == 0)  # 0 is solid rock, or unexplored
        if name in ("open door", "closed door"):
            properties[glyph] = DOOR | KICKABLE * (name == "closed door")
        elif name in ("sink", "opulent throne"):
            properties[glyph] = KICKABLE
    return GlyphTables(tuple(phrases), np.array([bool(phrase) for phrase in phrases]), properties)


def _object(number: int) -> str:
    described, kind = nethack.objdescr.from_idx(number), ord(nethack.objclass(number).oc_class)
    name, appearance = described.oc_name, described.oc_descr
    if kind in _CLASSES:
        return _CLASSES[kind]
    if kind == nethack.GEM_CLASS and appearance is not None:
        return "a gray stone" if appearance == "gray" else "a gem"
    if kind == nethack.COIN_CLASS:
        return "some gold"
    if kind == nethack.ARMOR_CLASS and appearance is not None:
        if appearance in _SHUFFLED_CLOAKS:
            return "a cloak"
        return _SHUFFLED_ARMOUR.get(appearance.split()[-1], _with_article(appearance))
    return _with_article(appearance or name)


def _with_article(name: str) -> str:
    if name.split()[-1] in _PLURALS:
        return f"some {name}"
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
