"""BabyAI's missions in French."""

import re
from collections.abc import Callable
from functools import cache
from itertools import product

from groundling.envs.text_env import FRENCH_COLOURS, FRENCH_NOUNS, Language, TranslationError, check_language

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
_VERBS = {
    "go to": ("aller à", "être allé à"),
    "pick up": ("ramasser", "avoir ramassé"),
    "open": ("ouvrir", "avoir ouvert"),
    "put": ("poser", "avoir posé"),
}  # French infinitive and perfect infinitive


def translate_mission(mission: str, language: str) -> str:
    """Translate a mission that follows BabyAI's grammar (Chevalier-Boisvert et al. 2019, arXiv 1810.08272).

    ``pick up the red key, then go to a box`` becomes ``ramasser la clef rouge, puis aller à une boîte``.

    Raises:
        TranslationError: The language or mission is unknown.
    """
    if check_language(language) == "english":
        return mission
    for english, french, done in ((", then ", ", puis ", False), (" after you ", " après ", True)):
        if len(parts := mission.split(english)) == 2:
            return _orders(parts[0]) + french + _orders(parts[1], done)
    return _orders(mission)


def change_things(mission: str, change: Callable[[str], str], language: str = "english") -> tuple[str, list[str]]:
    """Apply ``change`` to each phrase for an object ("" removes it); return the new mission and the new phrases."""
    phrases: list[str] = []

    def put(match: re.Match[str]) -> str:
        phrases.append(change(match["phrase"]))
        elided = "de" if match["elided"] and not phrases[-1] else match["elided"] or ""
        return f"{match['space']}{elided}{phrases[-1]}".rstrip()

    return _phrases(check_language(language)).sub(put, mission), phrases


@cache
def _phrases(language: Language) -> re.Pattern[str]:
    """Return a pattern for object phrases, including the preceding space and French elision ("d'")."""
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
        f"cannot translate the mission {text!r}: expected BabyAI's go to, pick up, open or put … next to …; use "
        "language='english' for other envs"
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
