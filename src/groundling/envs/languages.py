"""Languages of text worlds and prompts, with French words for things, colours and states."""

from typing import Literal, cast, get_args

from groundling.errors import GroundlingError

Language = Literal["english", "french"]

FRENCH_NOUNS = {
    "floor": "sol",
    "door": "porte",
    "key": "clef",
    "ball": "balle",
    "box": "boîte",
    "goal": "but",
    "lava": "lave",
}
FRENCH_COLOURS = {
    "red": "rouge",
    "green": "verte",
    "blue": "bleue",
    "purple": "violette",
    "yellow": "jaune",
    "grey": "grise",
}
FRENCH_STATES = {"open": "ouverte", "closed": "fermée", "locked": "fermée à clef"}


class TranslationError(GroundlingError):
    """An unknown language, or words without a translation."""


def check_language(language: str) -> Language:
    """Return ``language``; raise `TranslationError` if it is unknown."""
    if language not in get_args(Language):
        raise TranslationError(f"unknown language {language!r}: expected one of {', '.join(get_args(Language))}")
    return cast(Language, language)
