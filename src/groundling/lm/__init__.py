"""Language models: loading, candidate scoring, generation, heads."""

from groundling.lm.generation import Generation
from groundling.lm.heads import ActionHead, ValueHead
from groundling.lm.language_model import LanguageModel, Prompts
from groundling.lm.scoring import CandidateScores

__all__ = ["ActionHead", "CandidateScores", "Generation", "LanguageModel", "Prompts", "ValueHead"]
