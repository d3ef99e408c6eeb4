"""Word tokenization for every script: what lexical metrics count."""

import functools
import unicodedata

_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FFF),  # radicals
    (0x3005, 0x3007),
    (0x3021, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),
    (0x3400, 0x9FFF),  # Han
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)
"""Code points of scripts that are written without spaces between words."""
_FIRST_OTHER = 0x370
"""Before it stand the Latin letters and punctuation that the libraries' own rules know."""
_SHARED_PUNCTUATION = range(0x2000, 0x2070)
"""Quotes and dashes that Latin texts have, too: left to the libraries' own rules."""


def spaced(text: str) -> str:
    """Put spaces around each character of a script without spaces, and around punctuation of other scripts than Latin.

    Splitting the result at spaces gives words; of Chinese, Japanese, Thai, Lao, Khmer, Myanmar and Tibetan,
    characters with their combining marks. Latin text is returned unchanged, in Unicode's composed form (NFC).
    """
    if text.isascii():
        return text
    pieces: list[str] = []
    is_apart = False
    for character in unicodedata.normalize("NFC", text):
        if not is_mark(character):
            if is_apart or stands_apart(character):
                pieces.append(" ")
            is_apart = stands_apart(character)
        pieces.append(character)
    return "".join(pieces)


def alphanumeric(text: str) -> list[str]:
    """Lower-cased words of letters, digits and combining marks; everything else separates them.

    Of ASCII text these are ROUGE's own words. Invisible format characters, such as joiners, are dropped.
    """
    return "".join(map(_alphanumeric, spaced(text.lower()))).split()


@functools.lru_cache(maxsize=2**16)
def stands_apart(character: str) -> bool:
    """Whether a character is a word of its own in `spaced`."""
    code = ord(character)
    if any(first <= code <= last for first, last in _UNSPACED):
        return True
    is_shared = code < _FIRST_OTHER or code in _SHARED_PUNCTUATION
    return not is_shared and unicodedata.category(character)[0] == "P"


@functools.lru_cache(maxsize=2**16)
def is_mark(character: str) -> bool:
    """Whether a character combines with the one before it: accents, vowel signs."""
    return unicodedata.category(character)[0] == "M"


@functools.lru_cache(maxsize=2**16)
def _alphanumeric(character: str) -> str:
    category = unicodedata.category(character)
    return character if category[0] in "LMN" else "" if category == "Cf" else " "
