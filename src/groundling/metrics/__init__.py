"""Text metrics, most of which wrap existing libraries; `docs/metrics.md` lists all ids.

`create(id, **args).compute(prompts, generations, references, meta=None)` returns a dict from names to `MetricResult`s.
Libraries, data and models are loaded on first use.
"""

from groundling.metrics import bleu, matching, models, parent, summac, text_statistics  # noqa: F401 (registration)
from groundling.metrics.metric import Meta, Metric, MetricResult, Scorer, mean_of, metrics

register = metrics.register
create = metrics.create

__all__ = ["Meta", "Metric", "MetricResult", "Scorer", "create", "mean_of", "metrics", "register"]
