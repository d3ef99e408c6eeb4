"""Word tokenization of NLTK 3.7, the release that RL4LMs pins."""

import functools
import re
from typing import Any

from groundling.errors import GroundlingError


def words(text: str) -> list[str]:
    """Split a text into words and punctuation as in the Penn Treebank, without NLTK's data. This is NLTK's word
    tokenizer without three rules added after release 3.7 (opening quotes before whole words, dashes, clitics before
    line breaks), so that figures and prompts stay comparable with published ones.
    """
    return _tokenizer().tokenize(text)


def words_of_sentences(text: str) -> list[str]:
    """Split each sentence into words, as ``word_tokenize`` of NLTK 3.7 does: a full stop ends every sentence."""
    tokenizer = _tokenizer()
    import nltk.tokenize

    try:
        sentences = nltk.tokenize.sent_tokenize(text)
    except LookupError as error:
        raise GroundlingError(
            "words are cut sentence by sentence, which needs NLTK's data: python -m nltk.downloader punkt_tab, or give "
            "truncate_by=blanks"
        ) from error
    return [word for sentence in sentences for word in tokenizer.tokenize(sentence)]


@functools.cache
def _tokenizer() -> Any:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError as error:
        raise GroundlingError(f"nltk is not installed: pip install 'groundling[metrics]' ({error})") from error
    opening_quote = re.compile(r"'(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", re.IGNORECASE)

    class Tokenizer(NLTKWordTokenizer):
        STARTING_QUOTES = (*NLTKWordTokenizer.STARTING_QUOTES[:-1], (opening_quote, "' "))
        PUNCTUATION = tuple(rule for rule in NLTKWordTokenizer.PUNCTUATION if r"\u2012" not in rule[0].pattern)
        ENDING_QUOTES = tuple(rule for rule in NLTKWordTokenizer.ENDING_QUOTES if rule[0].pattern != r"\s+")

    return Tokenizer()
