"""WordNet 3.0, from NLTK's data or Debian's package."""

import functools
import io
import warnings
from pathlib import Path
from typing import Any

from groundling.errors import GroundlingError
from groundling.metrics.libraries import library

DEBIAN_WORDNET = Path("/usr/share/wordnet")  # Folder of Debian's package wordnet-base
_NUM_LEXICOGRAPHER_FILES = 45


@functools.cache
def wordnet() -> Any:
    """Load WordNet; raise `GroundlingError` if neither is installed."""
    corpus = library("nltk.corpus").wordnet
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
    nltk_data = library("nltk.data")
    reader = library("nltk.corpus.reader.wordnet").WordNetCorpusReader

    class DebianWordNet(reader):  # type: ignore[misc, valid-type]
        def open(self, name: str) -> Any:
            if name == "lexnames":  # missing in the package; metrics do not use its names
                return io.StringIO("".join(f"{i:02d}\tfile{i}\t0\n" for i in range(_NUM_LEXICOGRAPHER_FILES)))
            return super().open(name)

        def map_wn(self, version: str = "wordnet") -> None:
            """Skip the mapping to another version's synsets."""

    if str(DEBIAN_WORDNET) not in nltk_data.path:
        nltk_data.path.append(str(DEBIAN_WORDNET))  # NLTK reads from these folders only
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return DebianWordNet(str(DEBIAN_WORDNET), None)
