"""Text metrics: each a small adapter on a library, right by default.

`create(id, **args).compute(prompts, generations, references, meta=None)` gives a `MetricResult` by name. Libraries,
data and models are loaded when they are first needed. `docs/metrics.md` lists all ids.
"""

from groundling.metrics.bert_score import BertScore
from groundling.metrics.bleu import Bleu, Chrf, SacreBleu, Ter
from groundling.metrics.cider import Cider, Spice
from groundling.metrics.classifier import Bleurt, IntentAccuracy, LearnedReward
from groundling.metrics.diversity import Diversity
from groundling.metrics.meteor import Meteor
from groundling.metrics.metric import Meta, Metric, MetricResult, mean_of, metrics
from groundling.metrics.parent import BleuTotto, Parent
from groundling.metrics.perplexity import CausalPerplexity
from groundling.metrics.rouge import Rouge, RougeLMax
from groundling.metrics.summac import SummaCConvolution, SummaCZeroShot
from groundling.metrics.synthetic import Dates, IncreasingNumbers

register = metrics.register
create = metrics.create

__all__ = [
    "BertScore",
    "Bleu",
    "BleuTotto",
    "Bleurt",
    "CausalPerplexity",
    "Chrf",
    "Cider",
    "Dates",
    "Diversity",
    "IncreasingNumbers",
    "IntentAccuracy",
    "LearnedReward",
    "Meta",
    "Meteor",
    "Metric",
    "MetricResult",
    "Parent",
    "Rouge",
    "RougeLMax",
    "SacreBleu",
    "Spice",
    "SummaCConvolution",
    "SummaCZeroShot",
    "Ter",
    "create",
    "mean_of",
    "metrics",
    "register",
]
