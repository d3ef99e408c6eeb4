"""Rewards of generated text: every metric, sums of rewards, and the original's own.

`create(id, **args)(prompts, generations, references, meta=None)` gives ``(batch,)`` float32, `Reward.at_tokens` a
reward for each token. `measures` knows every metric, and every reward as the metric that is its mean. `docs/metrics.md`
lists all ids.
"""

from groundling.rewards.adapters import MetricReward, RewardMetric, measures
from groundling.rewards.common_gen import PreferenceModel, RepeatPenalty
from groundling.rewards.composite import WeightedSum
from groundling.rewards.pooled import Pooled
from groundling.rewards.reward import Reward, TokenReward, rewards
from groundling.rewards.text import IntentReward, RougeCombined

register = rewards.register
create = rewards.create

__all__ = [
    "IntentReward",
    "MetricReward",
    "Pooled",
    "PreferenceModel",
    "RepeatPenalty",
    "Reward",
    "RewardMetric",
    "RougeCombined",
    "TokenReward",
    "WeightedSum",
    "create",
    "measures",
    "register",
    "rewards",
]
