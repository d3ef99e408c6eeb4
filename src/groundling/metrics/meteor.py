"""METEOR (Banerjee and Lavie 2005): words matched exactly, by stem, by WordNet synonym."""

import functools
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.envs.text_generation.tasks import words
from groundling.errors import GroundlingError
from groundling.metrics.metric import (
    Figures,
    LexicalMetric,
    Meta,
    References,
    Texts,
    check_library,
    library,
    mean_of,
    metrics,
)

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


@metrics.register("meteor")
@dataclass(kw_only=True)
class Meteor(LexicalMetric):
    """METEOR of NLTK (α 0.9, β 3, γ 0.5), of the best reference.
    With ``compat``, as in the original, the reference is the Python notation of the list of references.
    """

    needs_references = True

    def check(self) -> None:
        check_library("nltk")
        wordnet()

    def measure(self, prompts: Texts, generations: Texts, references: References, meta: Meta) -> Figures:
        meteor = library("nltk.translate.meteor_score").meteor_score
        synonyms = wordnet()
        scores = []
        for generation, given in zip(generations, references, strict=True):
            texts = [str(list(given))] if self.compat else given
            scores.append(float(meteor([words(text) for text in texts], words(generation), wordnet=synonyms)))
        return {"lexical/meteor": mean_of(scores)}
