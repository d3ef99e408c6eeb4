"""Judges: what states a preference between two captioned segments, and the datasets that keep what they said."""

from groundling.judges import fence
from groundling.judges.annotate import Annotation, AnnotationEstimate, Summary
from groundling.judges.captions import caption
from groundling.judges.figures import RandomJudge, ReturnJudge, ScoreJudge
from groundling.judges.judge import FigureJudge, Judge, Reply, Request, judges
from groundling.judges.openai import OpenAIJudge
from groundling.judges.pairs import Pairs, Preference
from groundling.judges.questions import Question
from groundling.judges.rules import RulesJudge
from groundling.judges.transformers import TransformersJudge

register = judges.register
create = judges.create

__all__ = [
    "Annotation",
    "AnnotationEstimate",
    "FigureJudge",
    "Judge",
    "OpenAIJudge",
    "Pairs",
    "Preference",
    "Question",
    "RandomJudge",
    "Reply",
    "Request",
    "ReturnJudge",
    "RulesJudge",
    "ScoreJudge",
    "Summary",
    "TransformersJudge",
    "caption",
    "create",
    "fence",
    "judges",
    "register",
]
