"""Words as NLTK's tokeniser of 2022 cut them, and WordNet wherever it is installed."""

import functools
import io
import re
import warnings
from pathlib import Path
from typing import Any

from groundling.errors import GroundlingError
from groundling.metrics.libraries import library

DEBIAN_WORDNET = Path("/usr/share/wordnet")
"""Where Debian's package wordnet-base puts its files."""
_NUM_LEXICOGRAPHER_FILES = 45


def words(text: str) -> list[str]:
    """Words and punctuation of ``text``, cut as Penn Treebank does; needs no data.

    It is NLTK's word tokeniser without the three rules that came after release 3.7 (opening quotes before whole
    words, dashes, clitics before line breaks), so that figures stay comparable with published ones, and on the whole
    text instead of sentence by sentence: a full stop is cut off at the end of the text only.
    """
    return _tokenizer().tokenize(text)


@functools.cache
def _tokenizer() -> Any:
    nltk_tokenizer = library("nltk.tokenize.destructive", "metrics").NLTKWordTokenizer
    opening_quote = re.compile(r"'(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", re.IGNORECASE)

    class Tokenizer(nltk_tokenizer):  # type: ignore[misc, valid-type]
        STARTING_QUOTES = (*nltk_tokenizer.STARTING_QUOTES[:-1], (opening_quote, "' "))
        PUNCTUATION = tuple(rule for rule in nltk_tokenizer.PUNCTUATION if r"\u2012" not in rule[0].pattern)
        ENDING_QUOTES = tuple(rule for rule in nltk_tokenizer.ENDING_QUOTES if rule[0].pattern != r"\s+")

    return Tokenizer()


@functools.cache
def wordnet() -> Any:
    """WordNet 3.0: NLTK's data if they are there, else Debian's package.

    Raises:
        GroundlingError: neither is installed.
    """
    corpus = library("nltk.corpus", "metrics").wordnet
    try:
        corpus.ensure_loaded()
    except LookupError as error:
        if not (DEBIAN_WORDNET / "data.noun").exists():
            raise GroundlingError(
                "METEOR needs WordNet: python -m nltk.downloader wordnet, or apt install wordnet-base"
            ) from error
        return _debian_wordnet()
    return corpus


def _debian_wordnet() -> Any:
    nltk_data = library("nltk.data", "metrics")
    reader = library("nltk.corpus.reader.wordnet", "metrics").WordNetCorpusReader

    class DebianWordNet(reader):  # type: ignore[misc, valid-type]
        def open(self, name: str) -> Any:
            if name == "lexnames":  # the one file that the package lacks; its names matter to no metric
                return io.StringIO("".join(f"{i:02d}\tfile{i}\t0\n" for i in range(_NUM_LEXICOGRAPHER_FILES)))
            return super().open(name)

        def map_wn(self, version: str = "wordnet") -> None:
            """No map to another version's synsets."""

    if str(DEBIAN_WORDNET) not in nltk_data.path:
        nltk_data.path.append(str(DEBIAN_WORDNET))  # NLTK reads from nowhere else
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return DebianWordNet(str(DEBIAN_WORDNET), None)
