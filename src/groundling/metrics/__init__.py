"""Text metrics, most of them adapters of libraries; `docs/metrics.md` lists all ids.

`create(id, **args).compute(prompts, generations, references, meta=None)` returns a `MetricResult` by name. Libraries,
data and models are loaded at first use.
"""

from groundling.metrics.bert_score import BertScore
from groundling.metrics.bleu import Bleu, BleuTotto, Chrf, Cider, SacreBleu, Spice, Ter
from groundling.metrics.classifier import Bleurt, IntentAccuracy, LearnedReward
from groundling.metrics.diversity import Diversity
from groundling.metrics.meteor import Meteor
from groundling.metrics.metric import Meta, Metric, MetricResult, Scorer, mean_of, metrics
from groundling.metrics.parent import Parent
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
    "Scorer",
    "Spice",
    "SummaCConvolution",
    "SummaCZeroShot",
    "Ter",
    "create",
    "mean_of",
    "metrics",
    "register",
]
