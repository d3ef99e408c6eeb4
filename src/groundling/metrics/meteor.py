"""METEOR (Banerjee and Lavie 2005): words matched exactly, by stem, by WordNet synonym."""

from dataclasses import dataclass

from groundling.envs.text_generation.words import words
from groundling.metrics.libraries import check_library, library
from groundling.metrics.metric import LexicalMetric, metrics
from groundling.metrics.scorer import Figures, Meta, References, Texts, mean_of
from groundling.metrics.wordnet import wordnet


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
