"""Word splitting for any script, used by lexical metrics."""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from groundling.registry import Registry

_UNSPACED = (
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19FF), (0x1A20, 0x1AAF),
    (0x1B00, 0x1B7F), (0x2E80, 0x2FFF), (0x3005, 0x3007), (0x3021, 0x312F), (0x31A0, 0x31FF), (0x3400, 0xA4CF),
    (0xA980, 0xA9FF), (0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Code points of scripts that are written without spaces between words: Thai, Lao; Tibetan; Myanmar; Khmer; Tai Le,
New Tai Lue; Tai Tham; Balinese; radicals; Hiragana, Katakana, Bopomofo; Han, Yi; Javanese; Tai Viet."""
_ZERO_WIDTH_SPACE = "\u200b"
_FIRST_OTHER = 0x370  # Code points below this are Latin letters and punctuation, which the libraries handle correctly
_SHARED_PUNCTUATION = range(0x2000, 0x2070)  # Quotes and dashes also used in Latin texts; left to the libraries


def spaced(text: str) -> str:
    """Put spaces around each character of unspaced scripts, and around punctuation of non-Latin scripts. Splitting the
    result at spaces yields words; in Chinese, Japanese, Thai, Lao, Khmer, Myanmar, Tibetan, …, words are characters
    with their combining marks and joiners. A zero-width space becomes a space. Latin text is only normalised (NFC).
    """
    if text.isascii():
        return text
    pieces: list[str] = []
    is_apart = False
    for character in unicodedata.normalize("NFC", text).replace(_ZERO_WIDTH_SPACE, " "):
        if not _continues(character):
            if is_apart or stands_apart(character):
                pieces.append(" ")
            is_apart = stands_apart(character)
        pieces.append(character)
    return "".join(pieces)


def alphanumeric(text: str) -> list[str]:
    """Return lowercased words of letters, digits and combining marks; for ASCII text, these are ROUGE's words."""
    return "".join(map(_alphanumeric, spaced(text.lower()))).split()


def ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of length ``order``, in the order of their first occurrence."""
    return Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))


@functools.lru_cache(maxsize=2**16)
def stands_apart(character: str) -> bool:
    """Return True for a character that `spaced` turns into a separate word."""
    code = ord(character)
    if any(first <= code <= last for first, last in _UNSPACED):
        return True
    is_shared = code < _FIRST_OTHER or code in _SHARED_PUNCTUATION
    return not is_shared and unicodedata.category(character)[0] == "P"


@functools.lru_cache(maxsize=2**16)
def _continues(character: str) -> bool:
    """Return True for a character that modifies the previous one: accents, vowel signs, joiners."""
    category = unicodedata.category(character)
    return category[0] == "M" or category == "Cf"


@functools.lru_cache(maxsize=2**16)
def _alphanumeric(character: str) -> str:
    category = unicodedata.category(character)
    return character if category[0] in "LMN" else "" if category == "Cf" else " "


SENTENCE_END = re.compile(r"(?<=[.!?؟۔।॥])\s+|(?<=[。！？])\s*(?=[^\s」』”’）])")
"""Matches the end of a sentence; in Chinese and Japanese, no space needs to follow."""
_SUMMARY_SENTENCES = 3

post_processors: Registry[str] = Registry("post-processor")
"""Functions that map a generated text to the text to score."""


@post_processors.register("three_sentence_summary")
def three_sentence_summary(text: str) -> str:
    """Keep the first three sentences, one per line, as RL4LMs does when measuring its supervised summaries."""
    return "\n".join(SENTENCE_END.split(text.strip())[:_SUMMARY_SENTENCES])
