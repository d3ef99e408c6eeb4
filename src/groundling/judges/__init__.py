"""Judges, which express preferences between captioned segments, and datasets that store these preferences."""

from groundling.judges.asking import quoting as fence
from groundling.judges.asking.annotate import Annotation, AnnotationEstimate, AnnotationSummary
from groundling.judges.asking.judge import FigureJudge, Judge, Reply, Request, judges
from groundling.judges.asking.language_models import OpenAIJudge, TransformersJudge
from groundling.judges.asking.questions import Question
from groundling.judges.asking.rules import RandomJudge, ReturnJudge, RulesJudge, ScoreJudge
from groundling.judges.preferences import open_pairs
from groundling.judges.preferences.messages import MessagePairs
from groundling.judges.preferences.pairs import Comparison, Pairs, Preference, caption
from groundling.judges.preferences.recording import TextPairs

register = judges.register
create = judges.create

__all__ = [
    "Annotation",
    "AnnotationEstimate",
    "AnnotationSummary",
    "Comparison",
    "FigureJudge",
    "Judge",
    "MessagePairs",
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
    "TextPairs",
    "TransformersJudge",
    "caption",
    "create",
    "fence",
    "judges",
    "open_pairs",
    "register",
]
