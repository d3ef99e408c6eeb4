"""METEOR (Banerjee and Lavie 2005): words matched as they are, by stem, by WordNet synonym."""

from collections.abc import Sequence
from dataclasses import dataclass

from groundling.envs.text_generation.words import words
from groundling.metrics.libraries import check_library, library
from groundling.metrics.metric import LexicalMetric, Meta, MetricResult, mean_of, metrics
from groundling.metrics.wordnet import wordnet


@metrics.register("meteor")
@dataclass(kw_only=True)
class Meteor(LexicalMetric):
    """METEOR of NLTK (α 0.9, β 3, γ 0.5), of the reference that fits best.

    The original passed the list of references where one text was expected: with ``compat`` its Python notation,
    brackets and quotes included, is the one reference.
    """

    needs_references = True

    def check(self) -> None:
        """NLTK and WordNet."""
        check_library("nltk", "metrics")
        wordnet()

    def measure(
        self,
        prompts: Sequence[str],
        generations: Sequence[str],
        references: Sequence[Sequence[str]],
        meta: Meta | None,
    ) -> dict[str, MetricResult]:
        """``lexical/meteor``."""
        meteor = library("nltk.translate.meteor_score", "metrics").meteor_score
        synonyms = wordnet()
        scores = []
        for generation, given in zip(generations, references, strict=True):
            texts = [str(list(given))] if self.compat else given
            scores.append(float(meteor([words(text) for text in texts], words(generation), wordnet=synonyms)))
        return {"lexical/meteor": mean_of(scores)}
