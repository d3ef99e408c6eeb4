"""The missions of BabyAI and MiniGrid in French."""

import re
from collections.abc import Callable
from functools import cache
from itertools import product

from groundling.envs.languages import FRENCH_COLOURS, FRENCH_NOUNS, Language, TranslationError, check_language

_MASCULINE_COLOURS = FRENCH_COLOURS | {"green": "vert", "blue": "bleu", "purple": "violet", "grey": "gris"}
_PLACES = {
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
_OBJECT = re.compile(
    rf"\b(?P<article>the|a) (?:(?P<colour>{'|'.join(FRENCH_COLOURS)}) )?(?P<noun>key|ball|box|door|object)"
    rf"(?: (?P<place>{'|'.join(_PLACES)}))?"
)
_COLOUR = "|".join(FRENCH_COLOURS)
# MiniGrid's missions that are not of BabyAI's grammar.
_MINIGRID = {
    "": "",
    "reach the goal": "atteindre le but",
    "get to the green goal square": "atteindre le but vert",
    "avoid the lava and get to the green goal square": "éviter la lave et atteindre le but vert",
    "find the opening and get to the green goal square": "trouver le passage et atteindre le but vert",
    "use the key to open the door and then get to the goal": "ouvrir la porte avec la clef, puis atteindre le but",
    "traverse the rooms to get to the goal": "traverser les pièces pour atteindre le but",
    "traverse the maze to get to the goal": "traverser le labyrinthe pour atteindre le but",
    "go to the matching object at the end of the hallway": "aller à l'objet semblable au bout du couloir",
    "open the red door then the blue door": "ouvrir la porte rouge, puis la porte bleue",
}
_FETCH = re.compile(rf"(?:(?:go )?get|(?:go |you must )?fetch) (?P<object>a (?:{_COLOUR}) (?:key|ball|box))")
_PUT_NEAR = re.compile(r"put (?P<moved>the \w+ \w+) near (?P<fixed>the \w+ \w+)")
_UNLOCK = re.compile(
    rf"get (?P<key>the (?:{_COLOUR}) key) from the (?P<room>{_COLOUR}) room, "
    rf"unlock (?P<door>the (?:{_COLOUR}) door) and go to the goal"
)
_VERBS = {
    "go to": ("aller à", "être allé à"),
    "pick up": ("ramasser", "avoir ramassé"),
    "open": ("ouvrir", "avoir ouvert"),
    "put": ("poser", "avoir posé"),
}  # Infinitive and perfect infinitive in French


def translate_mission(mission: str, language: str) -> str:
    """Translate a mission of BabyAI's grammar (Chevalier-Boisvert et al. 2019, arXiv 1810.08272) or of MiniGrid.

    ``pick up the red key, then go to a box`` becomes ``ramasser la clef rouge, puis aller à une boîte``.

    Raises:
        TranslationError: An unknown language or mission.
    """
    if check_language(language) == "english":
        return mission
    if match := _FETCH.fullmatch(mission):
        return f"aller chercher {_object(match['object'], mission)}"
    if match := _PUT_NEAR.fullmatch(mission):
        return f"poser {_object(match['moved'], mission)} près de {_object(match['fixed'], mission)}"
    if match := _UNLOCK.fullmatch(mission):
        key, door = _object(match["key"], mission), _object(match["door"], mission)
        room = FRENCH_COLOURS[match["room"]]
        return f"prendre {key} dans la pièce {room}, déverrouiller {door} et aller au but"
    if mission in _MINIGRID:
        return _MINIGRID[mission]
    for english, french, done in ((", then ", ", puis ", False), (" after you ", " après ", True)):
        if len(parts := mission.split(english)) == 2:
            return _orders(parts[0]) + french + _orders(parts[1], done)
    return _orders(mission)


def change_things(mission: str, change: Callable[[str], str], language: str = "english") -> tuple[str, list[str]]:
    """Replace phrases for things (``the red key``), an empty one with the space before it; return text, phrases."""
    phrases: list[str] = []

    def put(match: re.Match[str]) -> str:
        phrases.append(change(match["phrase"]))
        elided = "de" if match["elided"] and not phrases[-1] else match["elided"] or ""
        return f"{match['space']}{elided}{phrases[-1]}".rstrip()

    return _phrases(check_language(language)).sub(put, mission), phrases


@cache
def _phrases(language: Language) -> re.Pattern[str]:
    """Return a pattern of the phrases for things, with the space and the French elision ("d'") before them."""
    if language == "english":
        return re.compile(rf"(?P<space> )(?P<elided>)(?P<phrase>{_OBJECT.pattern})")
    nouns, colours, places = ("key", "ball", "box", "door", "object"), ("", *FRENCH_COLOURS), ("", *_PLACES)
    english = (" ".join(" ".join(words).split()) for words in product(("the", "a"), colours, nouns, places))
    french = sorted((_object(phrase, phrase) for phrase in english), key=len, reverse=True)
    return re.compile(rf"(?P<space> )(?P<elided>d')?(?P<phrase>{'|'.join(map(re.escape, french))})")


def _orders(text: str, done: bool = False) -> str:
    return " et ".join(_order(part, done) for part in text.split(" and "))


def _order(text: str, done: bool) -> str:
    for english, infinitives in _VERBS.items():
        if not text.startswith(f"{english} "):
            continue
        words = infinitives[done]
        objects = [_object(part, text) for part in text.removeprefix(f"{english} ").split(" next to ")]
        if len(objects) != 1 + (english == "put"):
            break
        if english == "put":
            fixed = objects[1]
            joined = f"d'{fixed}" if fixed.startswith("u") else f"de {fixed}"
            return f"{words} {objects[0]} à côté {joined}"
        return f"{words} {objects[0]}"
    raise TranslationError(
        f"cannot translate the mission {text!r}: expected BabyAI's go to, pick up, open or put … next to …, "
        "or a mission of MiniGrid's; use language='english' for other envs"
    )


def _object(text: str, mission: str) -> str:
    match = _OBJECT.fullmatch(text)
    if match is None:
        raise TranslationError(
            f"cannot translate {text!r} in the mission {mission!r}: expected a BabyAI object such as 'the red key'"
        )
    article, colour, noun, place = match["article"], match["colour"], match["noun"], match["place"]
    if noun == "object":
        words = ["l'objet" if article == "the" else "un objet"]
        words += [_MASCULINE_COLOURS[colour]] if colour else []
    else:
        words = ["la" if article == "the" else "une", FRENCH_NOUNS[noun]]
        words += [FRENCH_COLOURS[colour]] if colour else []
    return " ".join([*words, _PLACES[place]] if place else words)
